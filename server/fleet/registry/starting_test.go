package registry_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/test/programs"
)

// A replica that only starts is no reason for a warning: neither its probes nor its silence.
func TestReplicasThatStartAreNoWarning(t *testing.T) {
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.hangs = true })
	var log programs.Log
	params := registry.Params{Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))}
	virtual(t, f, listed(spec("a"), spec("b")), params, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(20 * time.Second)
		if p := r.Pulse("b", time.Now()); p.Late != 0 || !p.Asked.IsZero() {
			t.Errorf("a replica that starts is late: %+v", p)
		}
		f.set("b", func(h *host) { h.hangs = false })
		pass(10 * time.Second)
		if text := log.String(); strings.Contains(text, "level=WARN") || !strings.Contains(text, "all replicas answer") {
			t.Errorf("the log has:\n%s", text)
		}
		f.set("b", func(h *host) { h.hangs = true })
		pass(20 * time.Second)
		if text := log.String(); strings.Count(text, "level=WARN") < 2 {
			t.Errorf("a replica that is lost is no warning:\n%s", text)
		}
	})
}
