package fleet

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/test/stack"
)

// The deciding router sees how long loads from host memory take, and all routers know it.
func TestTimesOfLoadsReachAllRouters(t *testing.T) {
	var specs []registry.Spec
	var urls []string
	for _, id := range []string{"a", "b"} {
		spec := stack.Publisher(t, id, func(c *enginesim.Config) {
			c.Core.Blocks, c.Core.MaxModelLen = 200, 3000
			c.Core.Lower.Host = core.LowerTier{Blocks: 20_000, Start: 100 * time.Millisecond, PerToken: 100 * time.Microsecond}
		})
		specs, urls = append(specs, spec), append(urls, spec.URL)
	}
	var routers []*stack.Stack
	for i := range 3 {
		o := fleetOptions(fmt.Sprintf("router-%d", i), routers, func(c *config.Config) { c.Registry.Replicas = specs })
		o.Existing = urls
		routers = append(routers, stack.Start(t, o))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	linked(t, routers)
	for _, r := range routers {
		eventually(t, "all ranks are exact", func() bool { return metric(t, r, `kvpilot_kvindex_ranks{state="exact"}`) == 2 })
	}
	dice := rand.New(rand.NewPCG(4, 32))
	ask := func(ids []uint32) {
		if _, _, _, err := completed(routers[0], ids, 2); err != nil {
			t.Fatal(err)
		}
	}
	const series = `kvpilot_chooser_tier_load_token_time_seconds{tier="cpu"}`
	eventually(t, "every router has a time of loads", func() bool {
		ids := someIDs(dice, 2600)
		ask(ids)
		for range 4 { // both GPUs lose it
			ask(someIDs(dice, 2600))
		}
		ask(ids)
		for _, r := range routers {
			if metric(t, r, series) == 0 {
				return false
			}
		}
		return true
	})
	seen := 0
	for _, r := range routers {
		if metric(t, r, `kvpilot_chooser_tier_found_ratio{tier="cpu"}`) > 0 {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("%d routers have seen loads themselves, want the deciding one alone", seen)
	}
}
