package demand

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chosen is a decision whose request has a second of work: half of it for its prompt, half for an answer of 100 tokens, each of which takes
// 10 ms and half of the memory.
func chosen(at time.Time) *decision.Decision {
	d := &decision.Decision{At: at, Request: decision.Request{Model: "m"}, Prompt: decision.Prompt{PromptTokens: 50, ExpectedOutput: 100}}
	d.Candidates = []decision.Candidate{{
		Overlap: decision.Overlap{BlockSize: 10}, RankLoad: decision.RankLoad{Blocks: 20}, Forecast: decision.Forecast{Prefill: .5, TPOT: .01},
	}}
	return d
}

func TestWorkIsThatOfPromptAndAnswer(t *testing.T) {
	if got := workOf(chosen(time.Now())); got < .999 || got > 1.001 {
		t.Errorf("the work is %v s, want 1", got)
	}
	d := chosen(time.Now())
	d.Candidates[0].Blocks, d.ExpectedOutput = 0, 0 // nothing is known of memory and answer
	if got := workOf(d); got < .5 || got > .7 {
		t.Errorf("the work is %v s, want a little more than that of the prompt", got)
	}
}

func TestWantedReplicasFollowTheWork(t *testing.T) {
	d := New(Params{Utilization: .5, Models: []string{"m"}})
	now := time.Now()
	if n := d.Wanted("m", State{}, now); n != 0 {
		t.Errorf("an idle pool needs %d", n)
	}
	if n := d.Wanted("m", State{Waiting: 1}, now); n != 1 {
		t.Errorf("a pool with its first request needs %d", n)
	}
	for range 600 { // two seconds of work each second, for five minutes
		d.Decision(chosen(now))
		now = now.Add(500 * time.Millisecond)
	}
	if n := d.Wanted("m", State{}, now); n != 4 {
		t.Errorf("with two replicas' work at a utilization of one half, %d are wanted", n)
	}
	if n := d.Wanted("m", State{Waiting: 60}, now); n != 8 {
		t.Errorf("with a minute's work that waits, %d are wanted", n)
	}
	dry, retried, elsewhere := chosen(now), chosen(now), chosen(now)
	dry.DryRun, retried.Attempt, elsewhere.DecidedBy = true, 1, "b"
	for range 1000 {
		d.Decision(dry)
		d.Decision(retried)
		d.Decision(elsewhere)
	}
	if n := d.Wanted("m", State{}, now); n != 4 {
		t.Errorf("with dry runs, retries and choices of other routers, %d are wanted", n)
	}
	now = now.Add(3 * time.Minute)
	if n := d.Wanted("m", State{}, now); n != 1 {
		t.Errorf("three minutes later %d are wanted", n)
	}
	now = now.Add(7 * time.Minute)
	if n := d.Wanted("m", State{}, now); n != 0 {
		t.Errorf("ten minutes later %d are wanted", n)
	}
	if n := d.Wanted("m", State{Running: 1}, now); n != 1 {
		t.Errorf("while an answer lasts %d are wanted", n)
	}
}
