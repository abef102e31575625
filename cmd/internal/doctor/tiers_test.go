package doctor

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// labelled gives a replica a label next to its sockets.
func labelled(label string) func(int, running) string {
	return func(_ int, r running) string { return "labels: {" + label + "}\n" + r.sockets() }
}

func TestTiersBelowTheGPU(t *testing.T) {
	t.Parallel()
	host := func(_ int, c *enginesim.Config) { c.Version, c.Core.Lower.Host.Blocks = "0.33.0", 4000 }
	store := func() func(int, *enginesim.Config) {
		c := core.DefaultConfig()
		c.Lower.Store.Blocks = 4000
		shared := core.NewStore(&c)
		return func(_ int, c *enginesim.Config) { c.Core.Lower.Shared = shared }
	}
	for name, tt := range map[string]struct {
		world world
		want  want
	}{
		"no tier":                         {world{}, want{Skip, "", "no KV event names a block", ""}},
		"host memory":                     {world{engine: host}, want{OK, "r1", "OffloadingConnector, 64000 tokens of host memory", ""}},
		"host memory of one replica":      {world{engine: func(i int, c *enginesim.Config) { host(i, c); c.Core.Lower.Host.Blocks *= i }}, want{OK, "r0", "nothing below the GPU", ""}},
		"a version that says nothing":     {world{engine: func(i int, c *enginesim.Config) { host(i, c); c.Version = "0.32.0" }}, want{OK, "r0", "blocks in host memory known", ""}},
		"nothing stored yet":              {world{engine: host, params: func(p *Params) { p.NoSend = true }}, want{OK, "r0", "nothing was stored there yet", ""}},
		"no events":                       {world{engine: host, replica: func(int, running) string { return "events: {endpoint: none}" }}, want{Warn, "r0", "count for nothing", "--kv-events-config"}},
		"a store that no label names":     {world{engine: store()}, want{Warn, "r1", "not the rank's own", "the same label kv_store"}},
		"a store":                         {world{engine: store(), replica: labelled("kv_store: one")}, want{OK, "r0", "the store one", ""}},
		"a label without a store":         {world{replica: labelled("kv_store: one")}, want{Warn, "r0", "no event names a block", "remove the label"}},
		"host memory and a label as well": {world{engine: host, replica: labelled("kv_store: one")}, want{OK, "r0", "the store one", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, r := range Local(t.Context(), tt.world.start(t)) {
				if r.Check != "tiers" {
					continue
				}
				judge(t, []Result{r}, map[string]want{"tiers": tt.want})
			}
		})
	}
}

func TestWhatIsMissingOfATier(t *testing.T) {
	offloading := enginestats.Offload{By: "OffloadingConnector", Tokens: 64000, Chunk: 1, Counted: true, Stored: true}
	chunks := offloading
	chunks.Chunk = 8
	held := func(host, store, unkeyed int) kvindex.RankStats {
		return kvindex.RankStats{State: kvblock.FeedExact, Blocks: [kvblock.Tiers]int{100, host, store}, Unkeyed: unkeyed}
	}
	for name, tt := range map[string]struct {
		below below
		want  Status
		text  string // in Seen or Change
	}{
		"nothing":                         {below{RankStats: held(0, 0, 0)}, OK, "nothing below the GPU"},
		"unkeyed blocks on the GPU alone": {below{RankStats: held(0, 0, 5)}, OK, "nothing below the GPU"},
		"stored and not named":            {below{Offload: offloading, RankStats: held(0, 0, 0)}, Warn, "self_describing_kv_events"},
		"LMCache without events":          {below{Offload: enginestats.Offload{By: "LMCache"}, RankStats: held(0, 0, 0)}, Warn, "enable_kv_events"},
		"LMCache with events":             {below{Offload: enginestats.Offload{By: "LMCache"}, belowGPU: belowGPU{events: 3, described: 3}, RankStats: held(9, 0, 0)}, OK, "9 blocks in host memory"},
		"a backend of the settings":       {below{Offload: enginestats.Offload{By: "OffloadingConnector"}, RankStats: held(0, 0, 0)}, OK, "no event has named a block there yet"},
		"chunks by name":                  {below{Offload: chunks, belowGPU: belowGPU{events: 3}, RankStats: held(9, 0, 0)}, Warn, "chunks of 8 blocks"},
		"chunks described":                {below{Offload: chunks, belowGPU: belowGPU{events: 3, described: 3}, RankStats: held(72, 0, 0)}, OK, "72 blocks"},
		"known by hash only":              {below{Offload: offloading, belowGPU: belowGPU{events: 3}, RankStats: held(9, 0, 4)}, Warn, "4 blocks are known by hash only"},
		"named and gone again":            {below{belowGPU: belowGPU{events: 3}, RankStats: held(0, 0, 0)}, OK, "3 events"},
	} {
		t.Run(name, func(t *testing.T) {
			found := tt.below.judge("r0")
			if len(found) != 1 || found[0].Status != tt.want || !strings.Contains(found[0].Seen+found[0].Change, tt.text) {
				t.Errorf("%+v, want %s with %q", found, tt.want, tt.text)
			}
		})
	}
}
