package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Engines that read the caches that were moved for them, by their own counters, stay in use for splits. Engines that compute the prompts instead, without
// a word, are found out by these counters, and requests are served whole.
func TestSplitsAreCheckedByTheEnginesCounters(t *testing.T) {
	for _, recompute := range []bool{false, true} {
		t.Run(fmt.Sprintf("recompute %t", recompute), func(t *testing.T) {
			f := startFleet(t, fleetOptions{
				replicas: 2, labels: "{kv_connector: nixl}",
				engine: func(_ int, c *enginesim.Config) { c.Version, c.Transfer.Connector = "0.33.0", "nixl" },
				yaml:   "chooser: {weights: {split_bonus: 1000}}\nenginestats: {interval: 50ms}\n",
			})
			for _, e := range f.engines {
				e.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Recompute: recompute}})
			}
			splits := func() float64 { return f.metric("kvpilot_router_prefills_total", `result="done"`) }
			n := 0
			ask := func() {
				n++
				cached(t, f.post("/v1/chat/completions", conversation(fmt.Sprint("moved", n), 4, "")))
			}
			shares := func() (least float64) {
				least = 1
				for i := range f.engines {
					if id := fmt.Sprint("r", i); f.compared(id) {
						least = min(least, f.metric("kvpilot_chooser_fetched_ratio", fmt.Sprintf("replica=%q", id)))
					}
				}
				return least
			}
			f.eventually("the engines' counters are compared with the splits", func() bool {
				ask()
				return (f.compared("r0") || f.compared("r1")) && (!recompute || shares() < 0.5) && n > 20
			})
			if splits() == 0 {
				t.Fatal("nothing was split")
			}
			if share := shares(); !recompute && share < 0.6 {
				t.Errorf("the least share is %v though every transfer is read", share)
			}
			before := splits()
			for range 10 {
				ask()
			}
			switch more := splits() - before; {
			case !recompute && more == 0:
				t.Error("nothing is split any more")
			case recompute && more > 9:
				t.Errorf("%v of 10 requests are split though no engine reads what is moved for it", more)
			}
		})
	}
}

// compared reports whether a replica's transfers were compared with its engine's counters.
func (f *fleet) compared(replica string) bool {
	return slices.ContainsFunc(f.seriesOf()["kvpilot_chooser_fetched_ratio"], func(labels map[string]string) bool { return labels["replica"] == replica })
}
