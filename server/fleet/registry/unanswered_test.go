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

// A mistyped address is logged at once, as a warning from half a minute on, and again every half a minute until it is right.
func TestReplicasThatDoNotAnswerAreLogged(t *testing.T) {
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.status = 0 })
	var log programs.Log
	params := registry.Params{Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))}
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

// A base URL as clients have it leads to /v1/v1; the log says so.
func TestAReplicaURLThatEndsInV1IsExplained(t *testing.T) {
	f := newFleet("a")
	wrong := spec("a")
	wrong.URL += "/v1/"
	config := listed(wrong)
	var log programs.Log
	params := registry.Params{Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))}
	virtual(t, f, config, params, func(t *testing.T, _ *registry.Registry, _ *watcher) {
		pass(1500 * time.Millisecond)
		if !strings.Contains(log.String(), "a at http://a:8000/v1: probe /health: status 404: remove /v1 from the replica's url") {
			t.Errorf("the log has:\n%s", &log)
		}
	})
	if got := config.Doubts(); len(got) != 1 || !strings.Contains(got[0], "replicas[0].url: \"http://a:8000/v1/\" ends in /v1") {
		t.Errorf("doubts: %q", got)
	}
	if got := listed(spec("a")).Doubts(); len(got) > 0 {
		t.Errorf("doubts about a good URL: %q", got)
	}
}
