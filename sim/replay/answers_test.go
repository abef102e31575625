package replay

import (
	"cmp"
	"math"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// session is a run with its own service, for a look at its inside.
func session(t *testing.T, trace *Trace, rate float64, o Options) (*sim, *service) {
	t.Helper()
	if o.Profile.Name == "" {
		o.Profile = Profiles()[0]
	}
	o.Block, o.PaceBias = 512, 1
	w := newWorkload(trace, o.Block)
	j := &job{work: w, speed: rate / w.rate(), seed: 1, setup: ruleset{Policy: decision.PredictedTTFT}, options: o}
	s := newSim(w, newEngines(&o.Profile, o.Hardware, o.Replicas, o.Block), j.speed, j.seed)
	s.delays = LocalDelays()
	s.turn(o.Turns, &o.Profile)
	cfg := chooser.DefaultConfig()
	cfg.Queue.MaxWait, cfg.Queue.MaxRequests = 0, math.MaxInt32
	cfg.Objective = cmp.Or(o.Objective, cfg.Objective)
	v, err := newService(s, cfg, j)
	if err != nil {
		t.Fatal(err)
	}
	s.router = v
	return s, v
}

// Of answers that come whole the router sees the end alone, and of the engines what they count.
func TestWholeAnswersShowTheirEndAlone(t *testing.T) {
	trace := generated(t, "conv", 200)
	s, v := session(t, trace, 1, Options{Traffic: Traffic{Answers: Answers{Whole: true, Limit: 4096}}, Engines: Engines{Replicas: 2}})
	s.run(0)
	r := v.routers[0]
	if err := v.err(); err != nil || s.ended != len(trace.Calls) || len(r.accuracy) != len(trace.Calls) {
		t.Fatalf("%d of %d calls ended, %d predictions, error %v", s.ended, len(trace.Calls), len(r.accuracy), err)
	}
	for call := range trace.Calls {
		if req := &r.requests[call]; !req.Unstreamed || req.ExpectedOutput != 4096 || req.OutputLimit != 4096 {
			t.Fatalf("call %d: %+v", call, req)
		}
	}
	for e, en := range s.engines {
		p := en.prefills
		if rate := float64(p.computed) / p.seconds; rate < 500 || rate > 8000 || p.computed > uint64(en.computed) {
			t.Errorf("engine %d counts %d tokens in %.1f s of prefill: %.0f tokens/s of an engine with 8,000", e, p.computed, p.seconds, rate)
		}
	}
}

// A replica that becomes slow has longer steps from then on, the planned ones included.
func TestATurnChangesTheSpeed(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "one", Chunk: 512, Calls: []Call{{In: 512, Out: 201, IDs: []uint64{1}, Prev: -1}}}
	whole := func(turns ...Turn) float64 {
		s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
		s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 1)}
		s.turn(turns, &p)
		s.run(0)
		return s.done[0] - s.first[0]
	}
	usual := whole()
	if got := whole(Turn{At: 1, Speed: 0.2}); got < 2*usual || got > 5*usual {
		t.Errorf("200 tokens take %.2f s where the engine becomes five times as slow in the middle, %.2f s where it does not", got, usual)
	}
	if got := whole(Turn{Replica: 3, At: 1, Speed: 0.2}); got != usual {
		t.Errorf("another replica's turn changes the time from %.2f to %.2f s", usual, got)
	}
	if list, err := ParseTurns([]string{"2:60:0.2"}); err != nil || list[0] != (Turn{2, 60, 0.2}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", "1", "1:2", "-1:2:3", "1:2:0", "1:-2:1", "a:b:c"} {
		if _, err := ParseTurns([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
