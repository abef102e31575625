package stack

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Publisher starts a simulated replica that publishes the KV events of its cache, and returns it as settings name it. It runs until the
// test ends. change may be nil.
func Publisher(t testing.TB, id string, change func(*enginesim.Config)) registry.Spec {
	t.Helper()
	c := enginesim.DefaultConfig()
	c.Core.Timing.Speed = 50
	if change != nil {
		change(&c)
	}
	http, events, replays := listen(t), listen(t), listen(t)
	engine, err := enginesim.New(c, enginesim.Params{
		HTTP: http, Events: []net.Listener{events}, Replays: []net.Listener{replays}, Log: slog.New(slog.DiscardHandler),
	})
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
		ID: replica.ID(id), URL: "http://" + http.Addr().String(),
		Events: registry.EventsSpec{Endpoint: "tcp://" + events.Addr().String(), Replay: "tcp://" + replays.Addr().String()},
	}
}
