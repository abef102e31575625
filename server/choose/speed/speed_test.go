package speed

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// engine is a small model of a replica: it serves prompts in order, several in one step, and its
// first tokens reach the router a little apart.
type engine struct {
	token, bend, base, overhead float64
	budget                      float64
	r                           *rand.Rand
	now                         time.Time
	// late, if set, changes when the router sees first tokens, given in the order of their times.
	late func(first []time.Time)
}

type prompt struct {
	entry  *Entry
	work   Work
	booked time.Time
	first  time.Time
}

// play sends prompts that arrive gap seconds apart on average and shows the rank what a router sees.
func (e *engine) play(rank *Rank, n int, gap float64, draw func() Work) {
	prompts := make([]*prompt, n)
	at := e.now
	for i := range prompts {
		at = at.Add(seconds(gap * e.r.ExpFloat64()))
		prompts[i] = &prompt{entry: new(Entry), work: draw(), booked: at}
	}
	// Steps: as many tokens as the budget takes, in order.
	var step time.Time
	var pending []*prompt
	left := map[*prompt]float64{}
	next := 0
	for next < n || len(pending) > 0 {
		if len(pending) == 0 && (step.IsZero() || prompts[next].booked.After(step)) {
			step = prompts[next].booked.Add(seconds(e.overhead / 2))
		}
		for next < n && !prompts[next].booked.After(step) {
			pending = append(pending, prompts[next])
			left[prompts[next]] = prompts[next].work.Tokens
			next++
		}
		budget, took := e.budget, e.base
		var done []*prompt
		for _, p := range pending {
			c := p.work.Context + p.work.Tokens - left[p]
			m := min(budget, left[p])
			budget -= m
			took += decision.PrefillTime(e.token, e.bend, c, m)
			if left[p] -= m; left[p] <= 0 {
				done = append(done, p)
			}
			if budget <= 0 {
				break
			}
		}
		step = step.Add(seconds(took))
		for i, p := range done {
			// One after the other, microseconds to milliseconds apart.
			p.first = step.Add(seconds(e.overhead/2 + float64(i)*0.0003*e.r.Float64()))
		}
		pending = slices.DeleteFunc(pending, func(p *prompt) bool { return !p.first.IsZero() })
	}
	if e.late != nil {
		slices.SortStableFunc(prompts, func(a, b *prompt) int { return a.first.Compare(b.first) })
		seen := make([]time.Time, n)
		for i, p := range prompts {
			seen[i] = p.first
		}
		e.late(seen)
		for i, p := range prompts {
			p.first = seen[i]
		}
	}
	type event struct {
		at    time.Time
		first bool
		p     *prompt
	}
	var events []event
	for _, p := range prompts {
		events = append(events, event{p.booked, false, p}, event{p.first, true, p})
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	for _, ev := range events {
		e.now = ev.at
		if ev.first {
			rank.FirstToken(ev.p.entry, ev.at, Decodes{})
		} else {
			rank.Booked(ev.p.entry, ev.p.work, ev.at, Decodes{})
		}
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func newEngine(tokensPerSecond float64, seed uint64) *engine {
	scale := 8000 / tokensPerSecond
	return &engine{
		token: 1 / tokensPerSecond, bend: 50000, base: 0.010 * scale, overhead: 0.002, budget: 2048,
		r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0),
	}
}

// documents draws long prompts, half of them cached to a part; chat draws short turns after long contexts.
func documents(r *rand.Rand) func() Work {
	return func() Work {
		n := 500 + r.Float64()*12000
		return Work{Tokens: n, Context: math.Floor(r.Float64() * 2 * n)}
	}
}

func chat(r *rand.Rand) func() Work {
	return func() Work {
		return Work{Tokens: 100 + r.Float64()*900, Context: r.Float64() * 8000, Certainty: Estimated}
	}
}

func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got/want-1) > share {
		t.Errorf("%s: %.4g, want %.4g within %.0f %%", what, got, want, 100*share)
	}
}

// First tokens that share an engine step taught "n tokens in microseconds": engines of 8,000 tokens/s
// were learned as 117k, 48k, 15k and 5k.
func TestEnginesOfAnySpeedAreLearned(t *testing.T) {
	for _, rate := range []float64{500, 2000, 8000, 32000, 128000, 500000} {
		for _, load := range []float64{0.3, 0.9, 1.5} {
			for name, draws := range map[string]func(*rand.Rand) func() Work{"documents": documents, "chat": chat} {
				t.Run(fmt.Sprintf("%.0f tokens per second at load %v of %s", rate, load, name), func(t *testing.T) {
					e := newEngine(rate, 7)
					rank := new(kind).newRank()
					draw := draws(e.r)
					var work float64
					for range 1000 {
						w := draw()
						work += decision.PrefillTime(e.token, e.bend, w.Context, w.Tokens) + e.base/2
					}
					e.play(rank, 300, work/1000/load, draw)
					m := rank.Model()
					limit := 0.15
					if name == "chat" && (rate > 100000 || load < 0.5) {
						limit = 0.6 // turns of a millisecond beside an overhead of two tell little of the rate
					}
					within(t, "tokens per second", 1/m.Token, rate, limit)
					want := decision.PrefillTime(e.token, e.bend, 4000, 4000) + 3*e.base + e.overhead
					got := decision.PrefillTime(m.Token, m.Bend, 4000, 4000) + 2*m.Step(0, 0) + m.Overhead
					within(t, "time of 4,000 tokens after 4,000", got, want, max(limit, 0.25))
					if m.Source != decision.SpeedLearned || m.Samples == 0 {
						t.Errorf("source %s after %d samples", m.Source, m.Samples)
					}
				})
			}
		}
	}
}

func TestEqualsShareWhatTheyLearn(t *testing.T) {
	kind := new(kind)
	first, second := kind.newRank(), kind.newRank()
	if m := second.Model(); m.Source != decision.SpeedPrior {
		t.Fatalf("source %s before anything was seen", m.Source)
	}
	e := newEngine(64000, 3)
	e.play(first, 40, 0.2, documents(e.r))
	m := second.Model()
	within(t, "the other's rate", 1/m.Token, 64000, 0.2)
	if m.Source != decision.SpeedKind || m.Samples != 0 {
		t.Errorf("source %s, %d samples, want the kind's and none", m.Source, m.Samples)
	}
	// One slow prompt (a first compilation, say) does not make the second rank an outcast.
	var entry Entry
	second.Booked(&entry, Work{Tokens: 4000}, e.now, Decodes{})
	second.FirstToken(&entry, e.now.Add(20*time.Second), Decodes{})
	if got := second.Model().Token * 64000; got > 2.5 {
		t.Errorf("after one slow prompt the rank is believed to be %.1f times slower than its equals", got)
	}
	// But one that is slower proves it.
	slow := newEngine(16000, 4)
	slow.now = e.now.Add(time.Minute)
	slow.play(second, 60, 0.8, documents(slow.r))
	within(t, "the slow one's rate", 1/second.Model().Token, 16000, 0.2)
	within(t, "the fast one's rate", 1/first.Model().Token, 64000, 0.2)
}

func TestARankCanMoveToAnotherKind(t *testing.T) {
	one, other := new(kind), new(kind)
	moved, stays := one.newRank(), other.newRank()
	e := newEngine(64000, 3)
	e.play(stays, 40, 0.2, documents(e.r))
	if m := moved.Model(); m.Source != decision.SpeedPrior {
		t.Fatalf("source %s in a kind of its own", m.Source)
	}
	other.adopt(moved)
	if m := moved.Model(); m.Source != decision.SpeedKind || one.len() != 0 || other.len() != 2 {
		t.Errorf("source %s, kinds of %d and %d ranks", m.Source, one.len(), other.len())
	}
	other.remove(moved)
	if other.len() != 1 {
		t.Errorf("%d ranks after one was removed", other.len())
	}
}

// What others compute on the engine, and what was computed for requests that left, is no measure of
// its
func TestDisturbedTimeDoesNotTeach(t *testing.T) {
	rank := new(kind).newRank()
	now := time.Unix(1000, 0)
	for range 50 {
		var a, b Entry
		rank.Booked(&a, Work{Tokens: 4000}, now, Decodes{})
		rank.Booked(&b, Work{Tokens: 4000}, now, Decodes{})
		now = now.Add(10 * time.Second)
		rank.Ended(&a, now) // it left
		now = now.Add(10 * time.Second)
		rank.FirstToken(&b, now, Decodes{})
		rank.Booked(&a, Work{Tokens: 4000}, now, Decodes{})
		rank.Disturbed(now)
		now = now.Add(10 * time.Second)
		rank.FirstToken(&a, now, Decodes{})
		rank.Booked(&a, Work{Tokens: 4000, Certainty: Unknown}, now, Decodes{})
		now = now.Add(10 * time.Second)
		rank.FirstToken(&a, now, Decodes{})
	}
	if m := rank.Model(); m.Samples != 0 || m.Source != decision.SpeedPrior {
		t.Errorf("learned %.0f tokens/s from %d samples of disturbed time", 1/m.Token, m.Samples)
	}
}

func TestAnswersThatComeWholeTeach(t *testing.T) {
	rank := new(kind).newRank()
	now := time.Unix(1000, 0)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 120 {
		n, output := 3000+r.Float64()*3000, 2
		if i%2 == 1 {
			n, output = 100, 200
		}
		var e Entry
		rank.Booked(&e, Work{Tokens: n, Silent: true}, now, Decodes{})
		now = now.Add(seconds(0.003 + 0.004 + n/32000 + float64(output-1)*0.004))
		rank.Answered(&e, now, output, Decodes{Sequences: 1})
		now = now.Add(time.Second)
	}
	m := rank.Model()
	within(t, "tokens per second", 1/m.Token, 32000, 0.2)
	within(t, "step", m.Step(1, 100), 0.004, 0.25)
}

// A silent request before a streamed one is done when the streamed one has its first token.
func TestSilentWorkIsCountedByTheNextFirstToken(t *testing.T) {
	rank := new(kind).newRank()
	now := time.Unix(1000, 0)
	for range 40 {
		var silent, streamed Entry
		rank.Booked(&silent, Work{Tokens: 8000, Silent: true}, now, Decodes{})
		rank.Booked(&streamed, Work{Tokens: 1000}, now, Decodes{})
		now = now.Add(seconds(9000.0 / 16000))
		rank.FirstToken(&streamed, now, Decodes{})
		now = now.Add(time.Second)
		rank.Ended(&silent, now)
	}
	within(t, "tokens per second", 1/rank.Model().Token, 16000, 0.2)
}

func TestStepsAreLearned(t *testing.T) {
	rank := new(kind).newRank()
	r := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1000, 0)
	truth := func(d Decodes) float64 { return 0.030 + 1e-4*float64(d.Sequences) + 6e-8*float64(d.Context) }
	for range 200 {
		k := 1 + r.IntN(100)
		d := Decodes{Sequences: k, Context: k * (1000 + r.IntN(8000))}
		noise := 0.9 + 0.2*r.Float64()
		if r.IntN(10) == 0 {
			noise = 5 // a client that reads slowly
		}
		now = now.Add(time.Second)
		rank.Stepped(truth(d)*noise, 8, d, now)
	}
	m := rank.Model()
	for _, d := range []Decodes{{1, 2000}, {20, 100000}, {100, 600000}} {
		within(t, fmt.Sprintf("step of %v", d), m.Step(d.Sequences, d.Context), truth(d), 0.2)
	}
}

func TestTheEnginesOwnCountersAreABeginning(t *testing.T) {
	rank := new(kind).newRank()
	rank.counted(1e6, 20, time.Unix(1000, 0))
	m := rank.Model()
	if m.Source != decision.SpeedEngine {
		t.Errorf("source %s", m.Source)
	}
	within(t, "tokens per second", 1/m.Token, 50000, 0.01)
	for i := range 30 {
		rank.throughput(40000, 1, Decodes{}, time.Unix(1001+int64(i), 0))
	}
	within(t, "tokens per second of a rank that others keep busy", 1/rank.Model().Token, 40000, 0.15)
}

func TestWrongPredictionsForAMinuteAreDistrusted(t *testing.T) {
	kind := new(kind)
	good, bad := kind.newRank(), kind.newRank()
	e := newEngine(8000, 1)
	e.play(good, 100, 1, documents(e.r))
	slow := newEngine(800, 2)
	slow.play(bad, 100, 10, documents(slow.r))
	within(t, "rate before", 1/bad.Model().Token, 800, 0.2)
	now := slow.now
	changes := 0
	for range 70 { // it became as fast as the others, and nothing teaches that
		now = now.Add(time.Second)
		if trusted, changed := bad.Predicted(10, 1, now); changed {
			changes++
			if trusted {
				t.Error("trusted again while wrong")
			}
		}
	}
	m := bad.Model()
	if changes != 1 || m.Source != decision.SpeedDistrusted {
		t.Fatalf("%d changes, source %s", changes, m.Source)
	}
	within(t, "rate used", 1/m.Token, 8000, 0.2)
	within(t, "error", bad.Error(), 10, 0.95)
}

// What was estimated at the choice and is known exactly later teaches the exact number.
func TestCorrectedWorkTeaches(t *testing.T) {
	rank := new(kind).newRank()
	now := time.Unix(1000, 0)
	for range 40 {
		var e Entry
		rank.Booked(&e, Work{Tokens: 3000, Certainty: Estimated}, now, Decodes{})
		rank.Correct(&e, 2000, 1000)
		now = now.Add(seconds(2000.0 / 8000))
		rank.FirstToken(&e, now, Decodes{})
		rank.Correct(&e, 9, 9) // too late
		now = now.Add(time.Second)
	}
	within(t, "tokens per second", 1/rank.Model().Token, 8000, 0.2)
}

// A router on a machine that has no time left sees nothing for a while and then many first tokens, one after the other.
func TestFirstTokensThatARouterSeesLateTeachNoNonsense(t *testing.T) {
	for _, rate := range []float64{2000, 8000, 32000, 128000} {
		for _, load := range []float64{0.5, 0.9, 1.5} {
			for _, stall := range []float64{0.1, 0.5, 1.5} {
				t.Run(fmt.Sprintf("%.0f tokens per second at load %v, stalls of %v s", rate, load, stall), func(t *testing.T) {
					e := newEngine(rate, 11)
					e.late = func(first []time.Time) {
						for i := 0; i < len(first); {
							until := first[i].Add(seconds(stall * (0.5 + e.r.Float64())))
							seen := until
							for ; i < len(first) && !first[i].After(until); i++ {
								first[i] = seen
								seen = seen.Add(seconds(0.006 * e.r.Float64()))
							}
							for calm := seen.Add(seconds(2 * stall * e.r.Float64())); i < len(first) && !first[i].After(calm); i++ {
								first[i] = later(first[i], seen)
							}
						}
					}
					rank := new(kind).newRank()
					draw := documents(e.r)
					e.play(rank, 400, 7500/rate/load, draw)
					if got := 1 / rank.Model().Token; got < rate/3 || got > 3*rate {
						t.Errorf("learned %.0f tokens/s", got)
					}
				})
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
