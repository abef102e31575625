package replay

import (
	"reflect"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Each call is served by the router that it came to, and all books are empty afterwards.
func TestSeveralRoutersServeTheCallsThatComeToThem(t *testing.T) {
	plays(t)
	for _, fleet := range Fleets() {
		t.Run(string(fleet), func(t *testing.T) { testSeveralRouters(t, fleet) })
	}
}

func testSeveralRouters(t *testing.T, fleet Fleet) {
	trace := generated(t, "conv", 600)
	p := Profiles()[0]
	j := &job{work: newWorkload(trace, 512), speed: 3, seed: 1, setup: ruleset{Policy: decision.PredictedTTFT}}
	j.options.Profile, j.options.Replicas, j.options.Block, j.options.PaceBias, j.options.Routers = p, 4, 512, 1, 3
	j.options.Fleet, j.options.RTT = fleet, 0.001
	s := newSim(j.work, newEngines(&p, Hardware{}, 4, 512), j.speed, j.seed)
	s.delays = LocalDelays()
	cfg := chooser.DefaultConfig()
	cfg.Queue.MaxWait = 0
	v, err := newService(s, cfg, j)
	if err != nil {
		t.Fatal(err)
	}
	s.router = v
	s.run(0)
	if err := v.err(); err != nil || s.ended != len(trace.Calls) || v.alone() != 0 {
		t.Fatalf("%d of %d calls ended, %.2f decided alone, error %v", s.ended, len(trace.Calls), v.alone(), err)
	}
	count := map[int]int{}
	for call := range trace.Calls {
		if v.of[call].number != v.of[call].servedBy[call] {
			t.Fatalf("call %d came to router %d and was served by %d", call, v.of[call].number, v.of[call].servedBy[call])
		}
		count[v.of[call].number]++
	}
	for _, r := range v.routers {
		if n := count[r.number]; n < 150 || n > 250 {
			t.Errorf("router %d had %d of 600 calls", r.number, n)
		}
		for e := range s.engines {
			if l := r.book.View(replica.Slot(e), r.Now()); l.InFlight != 0 || l.PrefillTokens != 0 {
				t.Errorf("router %d is left with %+v on engine %d", r.number, l, e)
			}
			if got := r.gauges.ranks[e].stats; got.OutputTokens == 0 {
				t.Errorf("router %d has read nothing of engine %d", r.number, e)
			}
		}
	}
}

func TestRunsOfSeveralRoutersRepeat(t *testing.T) {
	for _, fleet := range Fleets() {
		o := Options{Traffic: Traffic{Trace: generated(t, "conv", 400), Load: 0.95}, Engines: Engines{Replicas: 4, Delays: LocalDelays()}, Routing: Routing{Routers: 3, Fleet: fleet, RTT: 0.001}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{NoSaturation: true}}
		if a, b := play(t, o), play(t, o); !reflect.DeepEqual(a, b) || a.Routers != 3 || a.Fleet != fleet {
			t.Errorf("two runs with the same seed:\n%+v\n%+v", a, b)
		}
	}
}

// Several routers of which one decides for all choose as well as one router.
func TestAFleetWithOneDeciderChoosesAsOneRouterDoes(t *testing.T) {
	plays(t)
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 2000), Load: 0.9}, Engines: Engines{Replicas: 8, Delays: LocalDelays()}, Routing: Routing{RTT: 0.001}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 3, NoSaturation: true}}
	mean := func(routers int, fleet Fleet) float64 {
		o.Routers, o.Fleet = routers, fleet
		return play(t, o).Policies[decision.PredictedTTFT].Mean
	}
	one, fleet, alone := mean(1, ""), mean(4, FleetDecider), mean(4, FleetAlone)
	if fleet > 1.05*one || alone < 1.3*one {
		t.Errorf("mean time to the first token: %.2f s with one router, %.2f s with four that ask one of them, %.2f s with four alone", one, fleet, alone)
	}
}
