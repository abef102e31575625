package replay

import (
	"cmp"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// lying is a run of a trace over replicas of which the first ones lie.
type lying struct {
	sim     *sim
	service *service
	// share is the part of the calls from a moment on, in seconds, that each replica was sent; whole their mean time to the last token.
	share, whole []float64
	// suspected has what is held against each replica at the end, and ever what was at some time.
	suspected, ever []conduct.Suspicion
}

// mean is the time to the last token over all replicas.
func (l *lying) mean() (whole float64) {
	for i, share := range l.share {
		whole += share * l.whole[i]
	}
	return whole
}

func lie(t *testing.T, trace string, calls, replicas int, rate, from float64, change func(*Options), lies ...Lie) *lying {
	t.Helper()
	o := Options{Traffic: Traffic{Trace: generated(t, trace, calls)}, Engines: Engines{Replicas: replicas, Profile: Profiles()[0], Block: 512, Delays: LocalDelays(), Lies: lies}}
	o.Block = min(o.Block, o.Trace.Chunk)
	if change != nil {
		change(&o)
	}
	w := newWorkload(o.Trace, o.Block)
	last := 0.0
	for i := range w.Calls {
		last = max(last, w.Calls[i].At)
	}
	speed := rate / (float64(len(w.Calls)) / last)
	j := &job{report: &Report{}, options: o, work: w, speed: speed, seed: 1}
	s := newSim(w, newEngines(&o.Profile, o.Hardware, o.Replicas, o.Block, o.Lies...), speed, 1)
	s.delays = o.Delays
	cfg := chooser.DefaultConfig()
	cfg.Queue.MaxWait = 0
	cfg.Objective = cmp.Or(o.Objective, cfg.Objective)
	v, err := newService(s, cfg, j)
	if err != nil {
		t.Fatal(err)
	}
	s.router = v
	l := &lying{sim: s, service: v, share: make([]float64, replicas), whole: make([]float64, replicas), suspected: make([]conduct.Suspicion, replicas), ever: make([]conduct.Suspicion, replicas)}
	var look func()
	look = func() {
		for _, r := range v.routers[0].chooser.Rates() {
			l.suspected[r.Slot] = r.Conduct.Suspicions
			l.ever[r.Slot] |= r.Conduct.Suspicions
		}
		if s.ended < len(w.Calls) {
			s.after(0.5, look)
		}
	}
	s.after(0.5, look)
	s.run(0)
	if v.err() != nil {
		t.Fatal(v.err())
	}
	n := make([]float64, replicas)
	all := 0.0
	for i := range w.Calls {
		if slot := v.routers[0].served[i]; s.arrived[i] >= from && int(slot) < replicas {
			n[slot]++
			all++
			l.whole[slot] += s.done[i] - s.arrived[i]
		}
	}
	for i := range n {
		l.share[i] = n[i] / all
		l.whole[i] /= max(1, n[i])
	}
	return l
}

// A replica that gives the first token at once and then one per second took all of the traffic within seconds.
func TestInstantFirstTokensBuyNoTraffic(t *testing.T) {
	plays(t)
	for _, objective := range []decision.Objective{decision.ObjectiveAnswer, decision.ObjectiveCompletion} {
		for _, rate := range []float64{1, 3, 6} {
			l := lie(t, "synth", 400, 4, rate, 10, func(o *Options) { o.Objective = objective }, Lie{Instant: 1})
			// A rank that gets next to nothing shows nothing either.
			if l.share[0] > 0.1 || l.share[0] > 0.01 && l.ever[0]&conduct.Slow == 0 {
				t.Errorf("%s, %v calls/s: the liar gets %.3f of the calls after ten seconds and is held to be %v", objective, rate, l.share[0], l.ever[0].Names())
			}
			if l.ever[1]|l.ever[2]|l.ever[3] != 0 {
				t.Errorf("%s, %v calls/s: honest replicas are held to be %v", objective, rate, l.ever)
			}
		}
	}
}

// A replica whose decode steps take six times as long, with honest first tokens, had 12 to 17 % of the traffic, whatever that did to
// its answers. Now it has so little that all answers together take no longer than on the other three alone.
func TestSlowDecodesLoseTraffic(t *testing.T) {
	plays(t)
	for _, objective := range []decision.Objective{decision.ObjectiveAnswer, decision.ObjectiveCompletion} {
		for _, rate := range []float64{1, 3} {
			var share, whole, alone float64
			const seeds = 4
			for seed := range uint64(seeds) {
				play := func(replicas int, lies ...Lie) *lying {
					return lie(t, "synth", 400, replicas, rate, 20, func(o *Options) {
						var err error
						if o.Trace, err = Generate("synth", 400, seed+1); err != nil {
							t.Fatal(err)
						}
						o.Objective = objective
					}, lies...)
				}
				l := play(4, Lie{SlowDecode: 6})
				share, whole, alone = share+l.share[0]/seeds, whole+l.mean()/seeds, alone+play(3).mean()/seeds
				// In the overload of three calls a second the answers of the others may be as slow.
				if rate == 1 && l.ever[0]&conduct.Slow == 0 || l.ever[1]|l.ever[2]|l.ever[3] != 0 {
					t.Errorf("%s, %v calls/s, seed %d: held against them are %v", objective, rate, seed+1, l.ever)
				}
			}
			t.Logf("%s, %v calls/s: it gets %.3f of the calls; answers take %.1f s, on the others alone %.1f s", objective, rate, share, whole, alone)
			if whole > 1.05*alone {
				t.Errorf("%s, %v calls/s: it gets %.3f of the calls; answers take %.1f s, on the others alone %.1f s", objective, rate, share, whole, alone)
			}
		}
	}
}

// A replica that announces the blocks of its prompts and keeps none of them had the traffic of all who come back.
func TestFalseBlocksAreDiscounted(t *testing.T) {
	plays(t)
	for _, rate := range []float64{1, 1.5} {
		l := lie(t, "conv", 1000, 4, rate, 30, nil, Lie{FalseBlocks: true})
		if l.ever[0] != conduct.Unproven || l.ever[1]|l.ever[2]|l.ever[3] != 0 || l.share[0] > 0.2 {
			t.Errorf("%v calls/s: held against them are %v; shares %.2f", rate, l.ever, l.share)
		}
	}
}

// Honest fleets on all kinds of loads, even and mixed, idle and overloaded: nothing is held against any replica.
func TestHonestReplicasAreNotSuspected(t *testing.T) {
	plays(t)
	for _, name := range Generators() {
		for _, rate := range []float64{1, 5} {
			for _, speeds := range [][]float64{nil, {1, 0.5}} {
				l := lie(t, name, 250, 8, rate, 0, func(o *Options) { o.Hardware.Speeds = speeds })
				for slot, held := range l.ever {
					if held != 0 {
						t.Errorf("%s at %v calls/s, speeds %v: replica %d is held to be %v", name, rate, speeds, slot, held.Names())
					}
				}
			}
		}
	}
}

// A belief that no event confirms must end, or a rank seems to hold for good what it has long evicted.
func TestBeliefsEndWithoutEvents(t *testing.T) {
	l := lie(t, "conv", 600, 4, 1, 0, func(o *Options) { o.EventLoss = 1 })
	stats := l.service.routers[0].index.Stats()
	prompts := int64(0)
	for i := range l.sim.trace.Calls {
		prompts += int64(len(l.sim.trace.hashes[i]))
	}
	if stats.Believed == 0 || stats.Believed > prompts/4 {
		t.Errorf("%d blocks are believed after 600 prompts of %d blocks", stats.Believed, prompts)
	}
}
