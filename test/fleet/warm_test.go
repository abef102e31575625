package fleet

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// fewBatches has a replica keep few past batches for replays.
func fewBatches(c *enginesim.Config) { c.ReplayBuffer = 8 }

// A router that starts late is exact although the engine's past batches no longer reach back to its start.
func TestANewRouterPullsTheIndexOfAPeer(t *testing.T) {
	t.Parallel()
	spec := stack.Publisher(t, "publisher", fewBatches)
	of := func(name string, others ...*stack.Stack) *stack.Stack {
		o := fleetOptions(name, others)
		joined := o.Configure
		o.Existing = []string{spec.URL}
		o.Configure = func(c *config.Config) {
			joined(c)
			c.Registry.Replicas = []registry.Spec{spec}
		}
		return stack.Start(t, o)
	}
	exact := func(r *stack.Stack) bool { return metric(t, r, `kvpilot_kvindex_ranks{state="exact"}`) == 1 }
	first := of("first")
	eventually(t, "the first router is exact", func() bool { return exact(first) })
	for i := range 30 {
		if err := post(first, fmt.Sprintf("%d is the number of a prompt of several blocks that no other request has, because the number is in its first block", i)); err != nil {
			t.Fatal(err)
		}
	}
	// A router that is new itself has no index to give until it has stopped looking for one.
	eventually(t, "the first router is able", func() bool { return able(first) })
	late := of("late", first)
	eventually(t, "the late router is exact", func() bool { return exact(late) })
	blocks := func(r *stack.Stack) float64 { return metric(t, r, `kvpilot_kvindex_blocks`) }
	eventually(t, "both know the same", func() bool { return blocks(late) == blocks(first) && blocks(first) >= 30 })
	if n := metric(t, late, `kvpilot_peers_pull_seconds_count{outcome="ok"}`); n != 1 {
		t.Errorf("%v pulls", n)
	}
	eventually(t, "the late router is able", func() bool { return able(late) })
	first.Stop()
	again := of("first again", late)
	eventually(t, "the restarted router is exact", func() bool { return exact(again) })
}

// able reports whether a router says that it is able to decide, and so has an index that others may pull.
func able(r *stack.Stack) bool {
	resp, err := http.Get("http://" + r.HTTP + "/kvpilot/v1/routers")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return false
	}
	var list kvpilotv1.ListRoutersResponse
	if err := protojson.Unmarshal(text, &list); err != nil {
		return false
	}
	return slices.ContainsFunc(list.GetRouters(), func(r *kvpilotv1.Router) bool { return r.GetSelf() && r.GetReport().GetAble() })
}
