package replay

import (
	"math"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// One call alone: every delay is in its times.
func TestDelaysAreInTheTimes(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "one", Chunk: 512, Calls: []Call{{In: 1024, Out: 11, IDs: []uint64{1, 2}, Prev: -1}}}
	times := func(d Delays) (first, done float64) {
		s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
		s.delays = d
		s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 1)}
		s.run(0)
		return s.first[0], s.done[0]
	}
	first, done := times(Delays{})
	late, lateDone := times(Delays{Tokenize: 0.1, TokenizeToken: 1e-3, Send: 0.02, Receive: 0.003, Gap: 5, Event: 7})
	want := 0.1 + 1.024 + 0.02 + 0.003
	if math.Abs(late-first-want) > 1e-9 || math.Abs(lateDone-done-want) > 1e-9 {
		t.Errorf("the first token comes %v s later and the last one %v s, want %v", late-first, lateDone-done, want)
	}
}

// First tokens of one step reach the router one after the other, in the step's order.
func TestFirstTokensOfOneStepComeOneByOne(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "four", Chunk: 512}
	for i := range 4 {
		trace.Calls = append(trace.Calls, Call{In: 100, Out: 5, IDs: []uint64{uint64(i)}, Session: i, Prev: -1})
	}
	s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
	// All of them reach the engine while it is busy with the first one's step, or before it.
	s.delays = Delays{Send: 0.001, Gap: 0.0003}
	s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 4)}
	s.run(0)
	for i := 2; i < 4; i++ {
		if gap := s.first[i] - s.first[i-1]; math.Abs(gap-0.0003) > 1e-9 {
			t.Errorf("first token %d comes %v s after the one before, want 300 µs", i, gap)
		}
	}
}

// Caches differ as they are said to, and the oracle's has the size of all.
func TestReplicasHaveTheirOwnCaches(t *testing.T) {
	p := Profiles()[0]
	h := Hardware{Caches: []float64{1, 0.5}}
	blocks := 0
	for i, e := range newEngines(&p, h, 4, 128) {
		want := p.CacheTokens / 128
		if i%2 == 1 {
			want /= 2
		}
		if got := e.machine.Pool().Size(); got != want {
			t.Errorf("replica %d has %d blocks, want %d", i, got, want)
		}
		blocks += e.machine.Pool().Size()
	}
	if got := newPooled(&p, h, 4, 128)[0].machine.Pool().Size(); got != blocks {
		t.Errorf("the oracle has %d blocks, want %d", got, blocks)
	}
	o := Options{
		Traffic: Traffic{Trace: generated(t, "synth", 200), Load: 0.5}, Engines: Engines{Replicas: 2, Profile: p, Block: 512, Hardware: Hardware{Caches: []float64{1, 0.01}}},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 1, NoSaturation: true},
	}
	if _, err := Play(o); err == nil || !strings.Contains(err.Error(), "does not fit a replica's cache") {
		t.Errorf("a prompt that is longer than the smallest cache: %v", err)
	}
}

// A replica three times as fast does about three times the work, in a fleet that is busy.
func TestReplicasHaveTheirOwnSpeeds(t *testing.T) {
	p := Profiles()[0]
	engines := newEngines(&p, Hardware{Speeds: []float64{1, 3}}, 4, 128)
	for i, want := range []float64{1, 3, 1, 3} {
		if got := engines[i].machine.Config().Timing.Speed; got != want {
			t.Errorf("replica %d has speed %v, want %v", i, got, want)
		}
	}
	w := newWorkload(generated(t, "synth", 1500), 512)
	s := newSim(w, newPooled(&p, Hardware{Speeds: []float64{1, 3}}, 4, 512), 6, 1)
	s.pooled = true
	s.router = &oracle{sim: s, left: make([]float64, 4), work: make([]float64, len(w.Calls))}
	s.run(0)
	slow, fast := s.engines[0].computed+s.engines[2].computed, s.engines[1].computed+s.engines[3].computed
	if r := fast / slow; r < 2.4 || r > 3.6 {
		t.Errorf("the fast replicas computed %.2f times the tokens of the slow ones", r)
	}
	n := s.numbers(DefaultGoal())
	if len(n.Work) != 2 || n.Work[0].Speed != 1 || math.Abs(n.Work[1].Share-fast/(slow+fast)) > 1e-9 {
		t.Errorf("work by speed: %+v", n.Work)
	}
	// A fleet of replicas twice as fast needs half the time for everything.
	o := Options{Traffic: Traffic{Trace: generated(t, "synth", 300), Rates: []float64{0.5}}, Engines: Engines{Replicas: 2}, Rules: Rules{Policies: []decision.Policy{decision.RoundRobin}}, Runs: Runs{NoSaturation: true}}
	one := play(t, o).Policies[decision.RoundRobin]
	o.Hardware.Speeds, o.Rates = []float64{2}, []float64{1}
	two := play(t, o).Policies[decision.RoundRobin]
	if math.Abs(one.Mean/two.Mean-2) > 1e-6 || math.Abs(one.AnswerMean/two.AnswerMean-2) > 1e-6 {
		t.Errorf("mean %v and %v s, whole answers %v and %v s: want half", one.Mean, two.Mean, one.AnswerMean, two.AnswerMean)
	}
}

func TestPromptsKnownInPartAreEstimated(t *testing.T) {
	w := newWorkload(generated(t, "conv", 1000), 512)
	count := func(o Options) (estimated, whole, beginnings int) {
		for i := range w.Calls {
			k := w.knowledge(i, &o)
			full := w.Calls[i].In / 512
			switch {
			case !k.estimated && (k.tokens != w.Calls[i].In || len(k.hashes) != full):
				t.Fatalf("call %d of %d tokens is known as %+v", i, w.Calls[i].In, k)
			case k.estimated && (k.tokens < 1 || len(k.hashes) > full):
				t.Fatalf("call %d of %d tokens is estimated as %+v", i, w.Calls[i].In, k)
			}
			if !k.estimated {
				whole++
				continue
			}
			estimated++
			if len(k.hashes) > 0 {
				beginnings++
			}
			if again := w.knowledge(i, &o); again.tokens != k.tokens {
				t.Fatalf("call %d is estimated as %d tokens, then as %d", i, k.tokens, again.tokens)
			}
		}
		return estimated, whole, beginnings
	}
	if e, _, _ := count(Options{}); e != 0 {
		t.Errorf("%d prompts are estimated by default", e)
	}
	if e, _, b := count(Options{Routing: Routing{Texts: 0.3}}); e < 250 || e > 350 || b != 0 {
		t.Errorf("%d of 1000 prompts are known by their text, %d of them with ids; want 300 and none", e, b)
	}
	later := 0
	for _, b := range w.before {
		if b >= 0 {
			later++
		}
	}
	if e, _, b := count(Options{Routing: Routing{Beginnings: 1}}); e != later || b < later*9/10 {
		t.Errorf("%d prompts are known by their beginning, %d with blocks; want all %d later turns", e, b, later)
	}
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 300), Load: 0.7}, Engines: Engines{Replicas: 4}, Routing: Routing{Beginnings: 0.8, Texts: 0.2}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{NoSaturation: true}}
	if p := play(t, o).Policies[decision.PredictedTTFT]; p.Mean <= 0 || p.HitRate <= 0 {
		t.Errorf("played with estimated prompts: %+v", p.Numbers)
	}
}

func TestRatesReplaceLoads(t *testing.T) {
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 300), Rates: []float64{1.5}, Load: 0.7}, Engines: Engines{Replicas: 4}, Rules: Rules{Policies: []decision.Policy{decision.RoundRobin}}, Runs: Runs{NoSaturation: true}}
	r := play(t, o)
	if math.Abs(r.RPS-1.5) > 1e-9 || math.Abs(r.Load*r.Oracle.SaturationRPS-1.5) > 1e-9 {
		t.Errorf("%v requests/s at load %v of %v", r.RPS, r.Load, r.Oracle.SaturationRPS)
	}
	at := o.Trace.arrivals(1.5, 1)
	if rate := float64(len(at)) / at[len(at)-1]; math.Abs(rate-1.5) > 0.05 {
		t.Errorf("arrivals come at %v per second, want 1.5", rate)
	}
	if short := o.Trace.First(100); len(short.Calls) != 100 || len(o.Trace.First(0).Calls) != 300 {
		t.Error("the first calls of a trace are not the first ones")
	}
}

func TestPlotsOverLoadAreDrawn(t *testing.T) {
	plays(t)
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 300)}, Engines: Engines{Replicas: 4, Block: 512, Profile: Profiles()[0]}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT, decision.LeastTokens}}, Runs: Runs{Seeds: 1, NoSaturation: true}}
	reports, err := PlayLoads(o, 0.5, 0.7, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Curves(&b, reports); err != nil {
		t.Fatal(err)
	}
	svg := b.String()
	if !strings.HasPrefix(svg, "<svg") || !strings.HasSuffix(svg, "</svg>\n") || strings.Contains(svg, "NaN") || strings.Count(svg, "<polyline") != 6 {
		t.Errorf("a plot with %d curves, want three in each of two panels:\n%s", strings.Count(svg, "<polyline"), svg)
	}
	for _, want := range []string{"predicted-ttft", "least-tokens", "oracle", "first token", "whole answer"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot does not name %q", want)
		}
	}
}

// With jitter first tokens of one step may change places, none comes before its step, and the last token
// never before the first.
func TestJitterChangesTheOrderOfOutputs(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "burst", Chunk: 512}
	for i := range 100 {
		trace.Calls = append(trace.Calls, Call{In: 10, Out: 1 + i%2, IDs: []uint64{uint64(i)}, Session: i, Prev: -1})
	}
	s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
	s.delays = Delays{Send: 0.001, Gap: 1e-5, Jitter: 1e-4}
	s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 100)}
	s.run(0)
	swapped := 0
	for i := range trace.Calls {
		if s.first[i] <= s.arrived[i]+0.011 || s.done[i] < s.first[i] {
			t.Fatalf("call %d arrives at %v, its first token at %v, its last at %v", i, s.arrived[i], s.first[i], s.done[i])
		}
		if i > 1 && s.first[i] < s.first[i-1] {
			swapped++
		}
	}
	if swapped < 20 {
		t.Errorf("%d first tokens overtook the one before, want a good third of 98", swapped)
	}
}

// A call of an open loop whose prompt repeats an answer arrives at its own time, but not before that answer is there; how fast a
// full fleet is does not depend on it.
func TestCallsWaitForTheAnswersInThem(t *testing.T) {
	trace := &Trace{Chunk: 512, Calls: []Call{
		{At: 0, In: 2048, Out: 100, IDs: []uint64{1, 2, 3, 4}, Session: 1, Prev: -1},
		{At: 0.1, In: 2560, Out: 10, IDs: []uint64{1, 2, 3, 4, 5}, Session: 1, Prev: -1},
		{At: 90, In: 3072, Out: 10, IDs: []uint64{1, 2, 3, 4, 5, 6}, Session: 1, Prev: -1},
	}, After: []int{-1, 0, 1}}
	p := Profiles()[0]
	s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
	s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 3)}
	s.run(0)
	if s.done[0] < 1 || s.arrived[1] != s.done[0] || s.arrived[2] != 90 {
		t.Errorf("arrivals %v, ends %v; want the second at the first one's end, the third at its own time", s.arrived, s.done)
	}
	many := trace.repeat(3)
	if len(many.After) != 9 || many.After[4] != 3 || many.After[3] != -1 {
		t.Errorf("After of a repeated trace: %v", many.After)
	}
	if w := newWorkload(trace, 512); w.unbound().After != nil || w.After == nil {
		t.Error("the unbound workload is not one without waits")
	}
}

// A router knows the turns that came to it: what the turn before had, at once; else everything, a wait later; or any older turn.
func TestFrontendsKnowWhatTheySaw(t *testing.T) {
	trace := &Trace{Name: "turns", Chunk: 128}
	for turn := range 4 {
		c := Call{At: float64(turn), In: 256 * (turn + 1), Out: 128, Prev: -1}
		for id := range 2*(turn+1) + 1 {
			c.IDs = append(c.IDs, uint64(id))
		}
		trace.Calls = append(trace.Calls, c)
	}
	w := newWorkload(trace, 128)
	for _, tc := range []struct {
		kind   Frontends
		had    []int // the routers of the turns before the last
		before int
		early  bool
		blocks int
	}{
		{FrontendsAll, []int{1, 1, 1}, -1, false, 8},
		{FrontendsSeen, []int{1, 1, 0}, 2, true, 6},
		{FrontendsSeen, []int{0, 0, 1}, -1, false, 8},
		{FrontendsOlder, []int{0, 0, 1}, 1, true, 4},
		{FrontendsOlder, []int{0, 1, 1}, 0, true, 2},
		{FrontendsOlder, []int{1, 1, 1}, -1, false, 8},
	} {
		r := &router{calls: newCalls(4), sim: &sim{trace: w}, job: &job{options: Options{Routing: Routing{Frontends: tc.kind}}}}
		copy(r.cameTo, tc.had)
		k := r.knowledge(3)
		if k.before != tc.before || k.early != tc.early || len(k.hashes) != tc.blocks || k.estimated != tc.early || r.cameTo[3] != 0 {
			t.Errorf("%s, turns at %v: turn %d known, early %v, estimated %v, %d blocks; want %d, %v and %d", tc.kind, tc.had, k.before, k.early, k.estimated, len(k.hashes), tc.before, tc.early, tc.blocks)
		}
	}
}

// Chats at random routers of a fleet find what one router finds, unless their routers choose by older turns.
func TestOlderTurnsHideBlocksOfAFleet(t *testing.T) {
	plays(t)
	hits := map[string]float64{}
	for name, o := range map[string]Options{
		"one":   {Routing: Routing{Frontends: FrontendsSeen}},
		"seen":  {Routing: Routing{Frontends: FrontendsSeen, Routers: 4, Fleet: FleetDecider, RTT: 1e-3}},
		"older": {Routing: Routing{Frontends: FrontendsOlder, Routers: 4, Fleet: FleetDecider, RTT: 1e-3}},
	} {
		o.Trace, o.Block, o.Replicas, o.Load = generated(t, "chats", 1500), 128, 4, 0.7
		o.Policies, o.NoSaturation = []decision.Policy{decision.PredictedTTFT}, true
		r := play(t, o)
		hits[name] = r.Policies[decision.PredictedTTFT].HitRate
		var table strings.Builder
		if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "frontends "+string(o.Frontends)) {
			t.Errorf("the table does not name the frontends (%v):\n%s", err, table.String())
		}
	}
	if hits["seen"] < hits["one"]-0.01 || hits["older"] > hits["seen"]-0.01 {
		t.Errorf("shares found in caches: %v; want those of one router with frontends that know what they saw, and less by older turns", hits)
	}
}
