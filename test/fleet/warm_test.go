package fleet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// startPublisher starts a replica that publishes its cache and keeps few past batches for replays.
func startPublisher(t *testing.T, id string) registry.Spec {
	t.Helper()
	var sockets [3]net.Listener
	for i := range sockets {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		sockets[i] = l
	}
	c := enginesim.DefaultConfig()
	c.Core.Timing.Speed, c.ReplayBuffer = 50, 8
	engine, err := enginesim.New(c, enginesim.Params{HTTP: sockets[0], Events: sockets[1:2], Replays: sockets[2:], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := engine.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("simulated replica: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return registry.Spec{
		ID: replica.ID(id), URL: "http://" + sockets[0].Addr().String(),
		Events: registry.EventsSpec{Endpoint: "tcp://" + sockets[1].Addr().String(), Replay: "tcp://" + sockets[2].Addr().String()},
	}
}

// A router that starts late is exact although the engine's past batches no longer reach back to its start.
func TestANewRouterPullsTheIndexOfAPeer(t *testing.T) {
	spec := startPublisher(t, "publisher")
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
