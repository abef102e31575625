package registry_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/test/stack"
)

// A mistyped address is logged at once, as a warning from half a minute on, and again every half a minute until it is right.
func TestReplicasThatDoNotAnswerAreLogged(t *testing.T) {
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.status = 0 })
	var log stack.Log
	params := registry.Params{Log: slog.New(slog.NewTextHandler(&log, nil))}
	virtual(t, f, listed(spec("a"), spec("b")), params, func(t *testing.T, _ *registry.Registry, _ *watcher) {
		count := func(text string) int { return strings.Count(log.String(), text) }
		pass(1500 * time.Millisecond)
		if count("level=INFO msg=\"new replicas do not answer yet") != 1 || count("level=WARN") != 0 || count("down=1 of=2") != 1 || count("b at http://b:8000: ") != 1 || count("a at ") != 0 {
			t.Errorf("after a second the log has:\n%s", &log)
		}
		pass(20 * time.Second)
		if n := count("replicas do not answer"); n != 1 {
			t.Errorf("%d reports within 30 s", n)
		}
		pass(40 * time.Second)
		if n := count("level=WARN msg=\"replicas do not answer"); n != 1 && n != 2 {
			t.Errorf("%d warnings after a minute", n)
		}
		f.set("b", func(h *host) { h.status = 200 })
		pass(time.Minute)
		if count("all replicas answer") != 1 {
			t.Errorf("the end is not said:\n%s", &log)
		}
	})
}
