package router_test

import (
	"context"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// A choice that finds no replica in a view of the fleet that has changed since is made again: the ranks of a replica are new ones
// after its settings or its event endpoints have changed.
func TestAViewThatChangedDuringTheChoiceLosesNoRequest(t *testing.T) {
	for _, changes := range []bool{true, false} {
		var f *fleet
		calls := 0
		f = start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
			p.Decider = decide(func(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
				if calls++; calls > 1 {
					return f.chooser.Choose(ctx, req)
				}
				if before := f.params.Registry.Snapshot(); changes {
					f.params.Registry.Learn("r0", registry.Learned{BlockSize: 32, Blocks: 77})
					f.eventually("the view has changed", func() bool { return f.params.Registry.Snapshot() != before })
				}
				return nil, &chooser.NoReplica{Decision: &decision.Decision{Ranks: decision.Ranks{Chosen: -1}}}
			})
		})
		err := f.router.Serve(context.Background(), chat(""), &client{})
		if changes && (err != nil || calls != 2) {
			t.Errorf("a choice in a view that changed: %v after %d choices, want an answer after 2", err, calls)
		}
		if !changes && (err == nil || calls != 1) {
			t.Errorf("a choice in a view that is still so: %v after %d choices, want an error after 1", err, calls)
		}
	}
}
