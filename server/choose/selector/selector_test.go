package selector_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// question is a decision still to be made, with all rates as a fresh router has them.
func question(policy decision.Policy, prompt int, candidates ...decision.Candidate) *decision.Decision {
	d := &decision.Decision{
		Rule:   decision.Rule{Policy: policy, Params: selector.DefaultParams(), Seed: 42},
		Prompt: decision.Prompt{PromptTokens: prompt},
		Fleet:  decision.Fleet{Omega: 1, Returning: 0.3},
		Ranks:  decision.Ranks{Candidates: candidates},
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		c.Slot, c.Replica = replica.Slot(i), replica.ID(rune('A'+i))
		c.EngineWaiting, c.KVUsage = -1, -1
		if c.BlockSize == 0 {
			c.BlockSize = 16
		}
		if c.TokenTime == 0 {
			c.TokenTime, c.Bend, c.StepTime = 1.0/8000, 50000, 0.01
		}
	}
	return d
}

func chosen(d *decision.Decision) replica.ID {
	selector.Choose(d)
	if d.Pick() == nil {
		return ""
	}
	return d.Pick().Replica
}

// The example of the requirements: three workers, block 16, a prompt of 10 blocks.
func dynamoExample() *decision.Decision {
	return question(decision.OverlapLoad, 160,
		decision.Candidate{Overlap: decision.Overlap{GPU: 96}, RankLoad: decision.RankLoad{QueuedTokens: 32, DecodeBlocks: 13}},
		decision.Candidate{RankLoad: decision.RankLoad{DecodeBlocks: 10}},
		decision.Candidate{Overlap: decision.Overlap{CPU: 64}, Loading: decision.Loading{Loadable: 48}, RankLoad: decision.RankLoad{DecodeBlocks: 10}})
}

func TestOverlapLoadGivesDynamosCosts(t *testing.T) {
	d := dynamoExample()
	if got := chosen(d); got != "C" {
		t.Errorf("chose %s, want C", got)
	}
	for i, want := range []float64{19, 20, 17} {
		if got := d.Candidates[i].Cost; got != want {
			t.Errorf("cost of %s = %v, want %v", d.Candidates[i].Replica, got, want)
		}
	}
	for i, want := range []uint32{64, 160, 112} {
		if got := d.Candidates[i].Uncached; got != want {
			t.Errorf("effective prefill of %s = %d, want %d", d.Candidates[i].Replica, got, want)
		}
	}
	if d.Margin != 2 {
		t.Errorf("margin = %v, want 2", d.Margin)
	}
}

func TestOverlapLoadDecaysCredit(t *testing.T) {
	d := dynamoExample()
	d.Params.CreditDecay = 0.5
	selector.Choose(d)
	if got := d.Candidates[0].Cost; math.Abs(got-19.5454) > 1e-3 {
		t.Errorf("cost of A with decay 0.5 = %v, want 19.545", got)
	}
}

func TestTemperatureDrawsBySoftmax(t *testing.T) {
	const draws = 20000
	count := map[replica.ID]float64{}
	for i := range draws {
		d := dynamoExample()
		d.Params.Temperature, d.Seed = 0.5, uint64(i)*0x9e3779b97f4a7c15
		count[chosen(d)]++
	}
	for id, want := range map[replica.ID]float64{"A": 0.188, "B": 0.097, "C": 0.715} {
		if got := count[id] / draws; math.Abs(got-want) > 0.012 {
			t.Errorf("share of %s = %.3f, want %.3f", id, got, want)
		}
	}
}

// loading is a candidate that holds so many tokens in GPU and host memory.
func loading(gpu, host uint32) decision.Candidate {
	return decision.Candidate{Overlap: decision.Overlap{GPU: gpu, CPU: host}, Loading: decision.Loading{Load: 0.005 + 4e-6*float64(host), Loadable: host}}
}

// A load delays the request itself by its time, and spares computing: a tier that is slower than computing loses.
func TestALoadIsPricedByItsTime(t *testing.T) {
	fast, slow := loading(0, 2048), loading(0, 2048)
	slow.Load = 10
	d := question(decision.PredictedTTFT, 4096, decision.Candidate{}, fast, slow)
	if got := chosen(d); got != "B" {
		t.Errorf("chose %s, want the host memory that is faster than computing", got)
	}
	c := d.Candidates
	if c[1].Uncached != 2048 || c[2].Uncached != 2048 || c[0].Uncached != 4096 {
		t.Errorf("uncached %d, %d and %d tokens, want 4096, 2048 and 2048", c[0].Uncached, c[1].Uncached, c[2].Uncached)
	}
	if got, want := c[2].TTFT-c[1].TTFT, slow.Load-fast.Load; math.Abs(got-want) > 1e-9 {
		t.Errorf("the slower load delays the first token by %v s, want %v", got, want)
	}
	d.Omega, d.Params.Congestion = 3, 1.5
	waits := question(decision.PredictedTTFT, 4096, decision.Candidate{}, fast, slow)
	waits.Candidates[2].LoadWait = 10
	waits.Omega, waits.Params.Congestion = d.Omega, d.Params.Congestion
	selector.Choose(d)
	selector.Choose(waits)
	if got, want := d.Candidates[2].Cost-waits.Candidates[2].Cost, 3*10.0; math.Abs(got-want) > 1e-9 {
		t.Errorf("in a fleet that is full, a load costs %v more than a wait for another one, want %v", got, want)
	}
	if c[2].Cost <= c[0].Cost {
		t.Errorf("a load of 10 s costs %v, computing the prompt %v", c[2].Cost, c[0].Cost)
	}
}

// A higher overlap wins.
func TestHigherOverlapWins(t *testing.T) {
	for _, policy := range []decision.Policy{decision.PredictedTTFT, decision.OverlapLoad, decision.WeightedScorers} {
		d := question(policy, 4096, decision.Candidate{Overlap: decision.Overlap{GPU: 1024}}, decision.Candidate{Overlap: decision.Overlap{GPU: 2048}})
		if got := chosen(d); got != "B" {
			t.Errorf("%s: chose %s, want the higher overlap", policy, got)
		}
		d = question(policy, 4096, decision.Candidate{Overlap: decision.Overlap{GPU: 1024}}, loading(1024, 512))
		if got := chosen(d); got != "B" {
			t.Errorf("%s: chose %s, want the blocks in the CPU tier to break the tie", policy, got)
		}
		d = question(policy, 4096, decision.Candidate{Overlap: decision.Overlap{GPU: 2048}}, loading(1024, 1024))
		if got := chosen(d); got != "A" {
			t.Errorf("%s: chose %s, want the larger GPU hit before the CPU tier", policy, got)
		}
	}
}

// Equal overlap, lower load wins, and it flips when the load does.
func TestEqualOverlapLowerLoadWins(t *testing.T) {
	for _, policy := range []decision.Policy{decision.PredictedTTFT, decision.OverlapLoad, decision.LeastTokens} {
		busy := decision.Candidate{
			Overlap:  decision.Overlap{GPU: 1024},
			RankLoad: decision.RankLoad{QueuedTokens: 8 * 3000, Waiting: 8, Requests: 8},
			Forecast: decision.Forecast{Backlog: 3},
		}
		if got := chosen(question(policy, 4096, busy, decision.Candidate{Overlap: decision.Overlap{GPU: 1024}})); got != "B" {
			t.Errorf("%s: chose %s, want the idle one", policy, got)
		}
		if got := chosen(question(policy, 4096, decision.Candidate{Overlap: decision.Overlap{GPU: 1024}}, busy)); got != "A" {
			t.Errorf("%s: chose %s, want the idle one", policy, got)
		}
	}
	d := question(decision.OverlapLoad, 4096, decision.Candidate{RankLoad: decision.RankLoad{DecodeBlocks: 80}}, decision.Candidate{RankLoad: decision.RankLoad{DecodeBlocks: 20}})
	if got := chosen(d); got != "B" {
		t.Errorf("overlap-load: chose %s, want the lower decode load", got)
	}
	d = question(decision.PredictedTTFT, 4096, decision.Candidate{Pace: decision.Pace{StepTime: 0.03, TokenTime: 1.0 / 8000, Bend: 50000}}, decision.Candidate{})
	if got := chosen(d); got != "B" {
		t.Errorf("predicted-ttft: chose %s, want the shorter decode step", got)
	}
}

// Without ids a choice is made all the same, by load.
func TestWithoutIDsLoadDecides(t *testing.T) {
	for _, policy := range []decision.Policy{decision.PredictedTTFT, decision.OverlapLoad, decision.WeightedScorers, decision.PrefixAffinity} {
		d := question(policy, 0, decision.Candidate{
			RankLoad: decision.RankLoad{Requests: 3, Waiting: 3, QueuedTokens: 900},
			Forecast: decision.Forecast{Backlog: 1},
		}, decision.Candidate{})
		d.Keyless = true
		if got := chosen(d); got != "B" {
			t.Errorf("%s: chose %s, want the idle one", policy, got)
		}
		if policy != decision.PredictedTTFT && d.Reason != decision.ReasonNoKey {
			t.Errorf("%s: reason %q, want %q", policy, d.Reason, decision.ReasonNoKey)
		}
	}
}

func TestPredictedTTFTSpreadsWhatCostsLessElsewhere(t *testing.T) {
	warm := decision.Candidate{Overlap: decision.Overlap{GPU: 8000}, Forecast: decision.Forecast{Backlog: 2.5}}
	d := question(decision.PredictedTTFT, 8192, warm, decision.Candidate{})
	if got := chosen(d); got != "B" {
		t.Errorf("chose %s: a queue of 2.5 s is longer than a prefill of 8192 tokens", got)
	}
	d = question(decision.PredictedTTFT, 8192, warm, decision.Candidate{})
	d.Omega = 4 // on a full fleet the extra prefill costs everybody
	if got := chosen(d); got != "A" {
		t.Errorf("chose %s: at ω = 4 the extra second of prefill weighs more than the queue", got)
	}
	d = question(decision.PredictedTTFT, 8192, decision.Candidate{Overlap: decision.Overlap{GPU: 8000}, Forecast: decision.Forecast{Planned: 5}}, decision.Candidate{})
	if got := chosen(d); got != "B" {
		t.Errorf("chose %s: those who wait for the warm one count as its queue", got)
	}
}

// A fast rank has more requests that decode than a slow one by its speed: each counts more there, as long as there is something to win.
func TestAFastRanksDecodesCountMore(t *testing.T) {
	rank := func(rate, backlog float64, decoding uint32) decision.Candidate {
		return decision.Candidate{
			Pace: decision.Pace{TokenTime: 1 / rate, Bend: 1e9}, RankLoad: decision.RankLoad{Requests: decoding}, Forecast: decision.Forecast{Backlog: backlog},
		}
	}
	fleet := func(rate float64) *decision.Decision {
		d := question(decision.PredictedTTFT, 24_000, rank(24_000, 1, 30), rank(8_000, 0, 10))
		d.Rate = rate
		return d
	}
	if got := chosen(fleet(16_000)); got != "B" {
		t.Errorf("chose %s: a second of prefill on the fast rank delays 30 answers, after a queue of 1 s", got)
	}
	if got := chosen(fleet(0)); got != "A" {
		t.Errorf("chose %s without a rate of the fleet: the number alone counts", got)
	}
	even := func(rate float64) float64 {
		d := question(decision.PredictedTTFT, 24_000, rank(8_000, 3, 30), rank(8_000, 0, 10))
		d.Rate = rate
		chosen(d)
		return d.Candidates[0].Cost
	}
	if a, b := even(0), even(8_000); math.Abs(a-b) > 1e-9 {
		t.Errorf("a cost of %v, and %v without a rate: among equals the speed changes nothing", b, a)
	}
}

// A long prompt waits for a rank that writes nothing, rather than delay answers, but for six times its own prefill at most; only where no client
// sees its first token, the number of answers alone decides.
func TestNoPromptWaitsOutAnyQueueForAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prompt  int
		queue   float64 // in prefills of the prompt
		answers uint32
		whole   bool
		want    replica.ID
	}{
		{"a short queue", 32_000, 2, 40, false, "A"},
		{"a long one, few answers", 32_000, 5, 10, false, "B"},
		{"below the bound", 32_000, 5, 1000, false, "A"},
		{"above the bound", 32_000, 7, 1000, false, "B"},
		{"above the bound, nothing but the end counts", 32_000, 7, 1000, true, "A"},
		{"a quarter of the length: a quarter of the price of few", 8_000, 2, 20, false, "B"},
		{"and in the end the same bound", 8_000, 5, 4000, false, "A"},
	} {
		rank := func(queue float64, answers uint32) decision.Candidate {
			return decision.Candidate{
				Pace: decision.Pace{TokenTime: 1.0 / 8000, Bend: 1e12}, RankLoad: decision.RankLoad{Requests: answers}, Forecast: decision.Forecast{Backlog: queue},
			}
		}
		d := question(decision.PredictedTTFT, tt.prompt, rank(tt.queue*float64(tt.prompt)/8000, 0), rank(0, tt.answers))
		d.Whole = tt.whole
		if got := chosen(d); got != tt.want {
			t.Errorf("%s: chose %s, want %s (costs %.1f and %.1f)", tt.name, got, tt.want, d.Candidates[0].Cost, d.Candidates[1].Cost)
		}
	}
}

// A prompt costs the answers of a rank that is three times as fast three times as much: its second is worth more work. With the bound, too.
func TestAFastRanksAnswersCostMore(t *testing.T) {
	for _, answers := range []uint32{1, 100} {
		var costs [2][2]float64
		for i, interference := range []float64{0, selector.DefaultParams().Interference} {
			rank := func(rate float64) decision.Candidate {
				return decision.Candidate{Pace: decision.Pace{TokenTime: 1 / rate, Bend: 1e12}, RankLoad: decision.RankLoad{Requests: answers}}
			}
			d := question(decision.PredictedTTFT, 32_000, rank(24_000), rank(8_000))
			d.Rate, d.Params.Interference = 16_000, interference
			chosen(d)
			costs[i] = [2]float64{d.Candidates[0].Cost, d.Candidates[1].Cost}
		}
		fast, slow := costs[1][0]-costs[0][0], costs[1][1]-costs[0][1]
		if slow <= 0 || math.Abs(fast-3*slow) > 1e-6*fast {
			t.Errorf("the price for %d answers is %v on a fast rank, %v on a slow one", answers, fast, slow)
		}
	}
}

func TestPrefillTimeBendsWithContext(t *testing.T) {
	if got, want := decision.PrefillTime(1e-4, 50000, 0, 10000), 1.1; math.Abs(got-want) > 1e-9 {
		t.Errorf("10,000 tokens from nothing take %v, want %v", got, want)
	}
	if got, want := decision.PrefillTime(1e-4, 50000, 50000, 10000), 2.1; math.Abs(got-want) > 1e-9 {
		t.Errorf("10,000 tokens after 50,000 take %v, want %v", got, want)
	}
}

func TestSessionIsATermNotAFence(t *testing.T) {
	home := decision.Candidate{Affinity: decision.Affinity{Session: true}}
	if got := chosen(question(decision.PredictedTTFT, 1000, decision.Candidate{}, home)); got != "B" {
		t.Errorf("chose %s, want the session's rank among equals", got)
	}
	home.Backlog = 5
	if got := chosen(question(decision.PredictedTTFT, 1000, decision.Candidate{}, home)); got != "A" {
		t.Errorf("chose %s, want the idle rank although the session is at home elsewhere", got)
	}
}

func TestConsistentHashFollowsTheRingThenLoad(t *testing.T) {
	d := question(decision.ConsistentHash, 10, decision.Candidate{Affinity: decision.Affinity{Place: 2}}, decision.Candidate{Affinity: decision.Affinity{Place: 1}}, decision.Candidate{})
	if got := chosen(d); got != "B" {
		t.Errorf("chose %s, want the owner", got)
	}
	d.Candidates[1].Veto = decision.VetoState
	if got := chosen(d); got != "A" {
		t.Errorf("chose %s, want the first successor", got)
	}
	d = question(decision.ConsistentHash, 10, decision.Candidate{RankLoad: decision.RankLoad{Requests: 5}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 1}})
	if got := chosen(d); got != "B" || d.Reason != decision.ReasonNoKey {
		t.Errorf("chose %s for reason %q, want the least busy for want of a place", got, d.Reason)
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	var got string
	for cursor := range uint32(6) {
		d := question(decision.RoundRobin, 1, decision.Candidate{}, decision.Candidate{}, decision.Candidate{})
		d.Cursor = cursor
		got += string(chosen(d))
	}
	if got != "ABCABC" {
		t.Errorf("turns %s, want ABCABC", got)
	}
}

func TestPowerOfTwoTakesTheLessBusyOfTwo(t *testing.T) {
	for seed := range uint64(200) {
		d := question(decision.PowerOfTwo, 1, decision.Candidate{RankLoad: decision.RankLoad{Requests: 9}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 1}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 5}})
		d.Seed = seed
		if got := chosen(d); got == "A" {
			t.Fatalf("seed %d chose the busiest of all", seed)
		}
	}
}

// One candidate is taken, of two the less busy one, and of more each pair is drawn about as often as the others.
func TestPowerOfTwoDrawsEachPairEqually(t *testing.T) {
	only := question(decision.PowerOfTwo, 1, decision.Candidate{RankLoad: decision.RankLoad{Requests: 9}})
	if got := chosen(only); got != "A" {
		t.Errorf("of one candidate, %q was chosen", got)
	}
	const draws = 6000
	first, both := map[replica.ID]int{}, map[replica.ID]int{}
	for seed := range uint64(draws) {
		two := question(decision.PowerOfTwo, 1, decision.Candidate{RankLoad: decision.RankLoad{Requests: 3}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 2}})
		two.Seed = seed
		both[chosen(two)]++
		four := question(decision.PowerOfTwo, 1, decision.Candidate{RankLoad: decision.RankLoad{Requests: 1}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 2}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 3}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 4}})
		four.Seed = seed
		first[chosen(four)]++
	}
	if both["B"] != draws {
		t.Errorf("of two, %v were chosen", both)
	}
	// Of the six pairs A is the less busy one in three, B in two, C in one, D in none.
	for id, pairs := range map[replica.ID]int{"A": 3, "B": 2, "C": 1, "D": 0} {
		if want := draws * pairs / 6; math.Abs(float64(first[id]-want)) > draws/30 {
			t.Errorf("%s was chosen %d times, want about %d: %v", id, first[id], want, first)
		}
	}
}

// The rules of prefix-affinity.
func TestPrefixAffinity(t *testing.T) {
	tests := []struct {
		name   string
		chars  int
		t      float64
		a, b   decision.Candidate
		want   replica.ID
		reason decision.Reason
	}{
		{"without text, by load", 0, 0, decision.Candidate{RankLoad: decision.RankLoad{Requests: 2}, Affinity: decision.Affinity{Chars: 9}}, decision.Candidate{RankLoad: decision.RankLoad{Requests: 1}}, "B", decision.ReasonNoKey},
		{"too uneven, by load", 100, 2, decision.Candidate{RankLoad: decision.RankLoad{Requests: 10}, Affinity: decision.Affinity{Chars: 90}}, decision.Candidate{}, "B", decision.ReasonImbalance},
		{"a high match wins", 100, 0, decision.Candidate{RankLoad: decision.RankLoad{Requests: 10}, Affinity: decision.Affinity{Chars: 90}}, decision.Candidate{}, "A", decision.ReasonCost},
		{"a low match goes to the smallest tree", 100, 0, decision.Candidate{Affinity: decision.Affinity{Chars: 5, Held: 500}}, decision.Candidate{Affinity: decision.Affinity{Held: 20}}, "B", decision.ReasonCost},
		{"equal matches go by load", 100, 0, decision.Candidate{Affinity: decision.Affinity{Chars: 50}, RankLoad: decision.RankLoad{Requests: 3}}, decision.Candidate{Affinity: decision.Affinity{Chars: 50}, RankLoad: decision.RankLoad{Requests: 1}}, "B", decision.ReasonCost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := question(decision.PrefixAffinity, 100, tt.a, tt.b)
			d.PromptChars, d.Params.ImbalanceThreshold = tt.chars, tt.t
			if got := chosen(d); got != tt.want || d.Reason != tt.reason {
				t.Errorf("chose %s for %q, want %s for %q", got, d.Reason, tt.want, tt.reason)
			}
		})
	}
}

// randomDecision has random inputs in every field that a policy reads.
func randomDecision(r *rand.Rand) *decision.Decision {
	n := 1 + r.IntN(12)
	candidates := make([]decision.Candidate, n)
	policies := decision.Policies()
	d := question(policies[r.IntN(len(policies))], r.IntN(20000), candidates...)
	d.Seed, d.Cursor, d.Omega = r.Uint64(), r.Uint32(), 1+9*r.Float64()
	d.Keyless, d.PromptChars = r.IntN(4) == 0, r.IntN(3)*1000
	if r.IntN(3) == 0 {
		d.Params.Temperature = r.Float64() * 2
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if r.IntN(3) == 0 {
			c.Veto = decision.Vetoes()[r.IntN(len(decision.Vetoes()))]
		}
		c.GPU, c.CPU, c.Disk = uint32(r.IntN(20000)), uint32(r.IntN(2000)), uint32(r.IntN(2000))
		c.Chars, c.Held, c.Place = uint32(r.IntN(1000)), uint32(r.IntN(10000)), uint32(r.IntN(4))
		c.Requests, c.Waiting, c.QueuedTokens = uint32(r.IntN(20)), uint32(r.IntN(5)), uint32(r.IntN(30000))
		c.DecodeBlocks, c.Blocks, c.EngineWaiting = r.Float64()*1000, uint32(r.IntN(2))*1000, int32(r.IntN(5))-1
		c.Backlog, c.Planned, c.Busy, c.Slowdown = r.Float64()*5, r.Float64(), r.Float64(), r.Float64()
		c.Session = r.IntN(8) == 0
	}
	return d
}

func TestEveryDecisionIsSoundAndRecomputes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		d := randomDecision(r)
		selector.Choose(d)
		usable := 0
		for i := range d.Candidates {
			c := &d.Candidates[i]
			if c.Veto == decision.VetoNone {
				usable++
			}
			if math.IsNaN(c.Cost) || math.IsInf(c.Cost, 0) {
				t.Fatalf("%s: cost %v of %+v", d.Policy, c.Cost, c)
			}
			if int(c.Uncached) > d.PromptTokens {
				t.Fatalf("effective prefill of %d tokens exceeds the prompt's %d", c.Uncached, d.PromptTokens)
			}
		}
		switch {
		case usable == 0 && d.Chosen != -1:
			t.Fatalf("%s chose a vetoed candidate", d.Policy)
		case usable > 0 && (d.Pick() == nil || d.Pick().Veto != decision.VetoNone):
			t.Fatalf("%s chose %d of %d usable candidates", d.Policy, d.Chosen, usable)
		case d.Params.Temperature == 0 && d.Margin < 0:
			t.Fatalf("%s: margin %v below zero", d.Policy, d.Margin)
		}
		if again, same := selector.Recompute(d); !same || again.Reason != d.Reason || again.Margin != d.Margin {
			t.Fatalf("%s recomputes to %d for %q, was %d for %q", d.Policy, again.Chosen, again.Reason, d.Chosen, d.Reason)
		}
	}
}

func TestTiesAreSharedOut(t *testing.T) {
	count := map[replica.ID]int{}
	for seed := range uint64(3000) {
		d := question(decision.PredictedTTFT, 100, decision.Candidate{}, decision.Candidate{}, decision.Candidate{})
		d.Seed = seed * 0x9e3779b97f4a7c15
		count[chosen(d)]++
		if d.Reason != decision.ReasonTie {
			t.Fatalf("reason %q, want %q", d.Reason, decision.ReasonTie)
		}
	}
	for id, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%s was chosen %d times of 3000 among three equals", id, n)
		}
	}
}

// Those who return to a rank for its cache are reckoned with: others, who may find it prefilling
// this prompt, and the next turn of this conversation, which may find it prefilling others.
func TestReturnsAreInTheCost(t *testing.T) {
	visited := decision.Candidate{Revisits: decision.Revisits{Returns: 0.5, Saved: 2}}
	lonely := decision.Candidate{Revisits: decision.Revisits{Residual: 0.5}}
	for _, tt := range []struct {
		name   string
		prompt int
		want   int
	}{
		{"a long prompt goes where few return", 40000, 1},
		{"a short one goes where its next turn will not wait", 1000, 0},
	} {
		d := question(decision.PredictedTTFT, tt.prompt, visited, lonely)
		if selector.Choose(d); d.Chosen != tt.want {
			t.Errorf("%s: chosen %d, costs %v and %v", tt.name, d.Chosen, d.Candidates[0].Cost, d.Candidates[1].Cost)
		}
	}
	// Nobody waits longer than he is spared: the price grows with the prompt, not with its square.
	price := func(prompt int) float64 {
		d := question(decision.PredictedTTFT, prompt, visited, decision.Candidate{})
		d.Candidates[0].Bend, d.Candidates[1].Bend = 0, 0
		selector.Choose(d)
		return d.Candidates[0].Cost - d.Candidates[1].Cost
	}
	if once, twice := price(80000), price(160000); twice > 2.3*once || twice < 1.8*once {
		t.Errorf("a prompt of 10 s costs others %.2f s, one of 20 s %.2f s", once, twice)
	}
}

// 40 of 40 fresh prompts went to one replica of an idle fleet: equals differ by less than is known of them.
func TestEqualsWithinNoiseAreDrawn(t *testing.T) {
	d := decision.Decision{
		Rule:   decision.Rule{Policy: decision.PredictedTTFT, Params: selector.DefaultParams()},
		Prompt: decision.Prompt{PromptTokens: 4000},
		Fleet:  decision.Fleet{Omega: 1},
		Ranks: decision.Ranks{Candidates: []decision.Candidate{
			{Pace: decision.Pace{TokenTime: 1.000e-4, Bend: 50000, Spread: 0.04}}, {Pace: decision.Pace{TokenTime: 1.010e-4, Bend: 50000, Spread: 0.04}},
			{Pace: decision.Pace{TokenTime: 1.005e-4, Bend: 50000, Spread: 0.04}}, {Pace: decision.Pace{TokenTime: 1.200e-4, Bend: 50000, Spread: 0.04}},
		}},
	}
	var picked [4]int
	for seed := range uint64(1200) {
		d.Seed = seed * 0x9e3779b97f4a7c15
		selector.Choose(&d)
		picked[d.Chosen]++
		if d.Reason != decision.ReasonTie {
			t.Fatalf("reason %v", d.Reason)
		}
	}
	for i, n := range picked[:3] {
		if n < 320 || n > 480 {
			t.Errorf("candidate %d was picked %d times of 1200, want about 400", i, n)
		}
	}
	if picked[3] != 0 {
		t.Errorf("one that is 20 %% slower was picked %d times", picked[3])
	}
	d.Candidates[2].GPU = 1000
	for seed := range uint64(100) {
		if d.Seed = seed; true {
			selector.Choose(&d)
		}
		if d.Chosen != 2 {
			t.Fatal("noise hid a quarter of the prompt in a cache")
		}
	}
}

func TestTargetsComeFirstUnderSLO(t *testing.T) {
	d := decision.Decision{
		Rule:   decision.Rule{Policy: decision.PredictedTTFT, Objective: decision.ObjectiveSLO, Params: selector.DefaultParams(), Targets: decision.Targets{TTFT: time.Second, TPOT: 50 * time.Millisecond}},
		Prompt: decision.Prompt{PromptTokens: 4000},
		Fleet:  decision.Fleet{Omega: 3},
		Ranks: decision.Ranks{Candidates: []decision.Candidate{
			{
				Pace:     decision.Pace{TokenTime: 1e-4, StepTime: 0.01, FullStep: 0.2},
				Overlap:  decision.Overlap{GPU: 3900},
				Forecast: decision.Forecast{Backlog: 1.1},
			}, // nearly all cached, too late
			{Pace: decision.Pace{TokenTime: 1e-4, StepTime: 0.01, FullStep: 0.2}, Forecast: decision.Forecast{Backlog: 0.3}}, // in time
			{
				Pace:     decision.Pace{TokenTime: 1e-4, StepTime: 0.01, FullStep: 0.2, Busy: 0.99},
				Overlap:  decision.Overlap{GPU: 2000},
				Forecast: decision.Forecast{Backlog: 0.1},
			}, // decodes slowly
		}},
	}
	selector.Choose(&d)
	if d.Chosen != 1 {
		t.Errorf("candidate %d: %+v", d.Chosen, d.Candidates)
	}
	d.Objective = decision.ObjectiveAnswer
	if selector.Choose(&d); d.Chosen == 1 {
		t.Error("another objective keeps targets, too")
	}
	d.Objective, d.Waited = decision.ObjectiveSLO, 800*time.Millisecond
	if selector.Choose(&d); d.Pick().Late <= 0 {
		t.Error("the time that the request waited does not count")
	}
}
