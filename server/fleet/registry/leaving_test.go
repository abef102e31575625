package registry_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// left reports whether the requests of a replica move, an hour after now when late is set.
func left(r *registry.Registry, id replica.ID, late bool) bool {
	now := time.Now()
	if late {
		now = now.Add(time.Hour)
	}
	of, ok := r.Snapshot().Replica(id)
	return ok && r.IsLeft(of, now)
}

func TestWhichReplicasAreLeft(t *testing.T) {
	a, b := newFakeReplica(t), newFakeReplica(t)
	for name, tc := range map[string]struct {
		leaving bool
		drain   *registry.DrainOptions
		after   time.Duration
		now     bool
		later   bool
	}{
		"it is ready":                        {after: time.Minute},
		"its source announces its end":       {leaving: true, now: true, later: true},
		"and it drains":                      {leaving: true, drain: &registry.DrainOptions{Force: true}, now: true, later: true},
		"it drains":                          {drain: &registry.DrainOptions{}},
		"it drains with move":                {drain: &registry.DrainOptions{Move: true}, now: true, later: true},
		"drains move requests after a while": {drain: &registry.DrainOptions{}, after: time.Minute, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := fast(registry.Spec{ID: "a", URL: a.URL, Leaving: tc.leaving}, registry.Spec{ID: "b", URL: b.URL})
			c.Drain.MoveAfter = tc.after
			r := start(t, c, registry.Params{})
			want := replica.StateReady
			if tc.leaving {
				want = replica.StateDraining
			}
			eventually(t, "it is known", func() bool { return state(r, "a") == want && state(r, "b") == replica.StateReady })
			if tc.drain != nil {
				if err := r.Drain(t.Context(), "a", *tc.drain); err != nil {
					t.Fatal(err)
				}
			}
			if got := left(r, "a", false); got != tc.now {
				t.Errorf("left now: %t, want %t", got, tc.now)
			}
			if got := left(r, "a", true); got != tc.later {
				t.Errorf("left later: %t, want %t", got, tc.later)
			}
			if left(r, "b", true) {
				t.Error("the other one is left")
			}
		})
	}
}

// A pod that is being deleted is left as soon as the API server says so.
func TestAPodThatIsDeletedIsLeft(t *testing.T) {
	k := newKube(t)
	k.put("vllm-1", "IPv4", false, endpointPod{name: "a", address: "10.0.0.1"})
	r := start(t, k.config(), registry.Params{})
	eventually(t, "the pod is known", func() bool { _, ok := r.Snapshot().Replica("a"); return ok })
	if left(r, "a", true) {
		t.Fatal("it is left")
	}
	eventually(t, "a watch", func() (ok bool) { k.with(func() { ok = len(k.watchers) > 0 }); return ok })
	k.put("vllm-1", "IPv4", false, endpointPod{name: "a", address: "10.0.0.1", terminating: true})
	eventually(t, "it is left", func() bool { return left(r, "a", false) })
}

// An engine that says that it is paused is asked with each probe; one without the route is asked once.
func TestAPauseIsNoticed(t *testing.T) {
	var paused, has atomic.Bool
	var asked atomic.Int64
	f := newFakeReplica(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/is_paused" || !has.Load() {
			if r.URL.Path == "/is_paused" {
				asked.Add(1)
			}
			f.Config.Handler.ServeHTTP(w, r)
			return
		}
		if paused.Load() {
			_, _ = w.Write([]byte(`{"is_paused": true}`))
			return
		}
		_, _ = w.Write([]byte(`{"is_paused":false}`))
	}))
	t.Cleanup(front.Close)
	is := func(r *registry.Registry, want bool) func() bool {
		return func() bool { return r.Pulse("a", time.Now()).Paused == want }
	}
	has.Store(true)
	r := start(t, fast(registry.Spec{ID: "a", URL: front.URL}), registry.Params{})
	eventually(t, "it is ready", func() bool { return state(r, "a") == replica.StateReady })
	for range 2 {
		paused.Store(true)
		eventually(t, "it is paused", is(r, true))
		paused.Store(false)
		eventually(t, "it works", is(r, false))
	}
	if state(r, "a") != replica.StateReady {
		t.Error("a pause changes the replica's state")
	}

	has.Store(false)
	probed := func(r *registry.Registry) time.Time { return r.Snapshot().Details("a").Probed }
	other := start(t, fast(registry.Spec{ID: "a", URL: front.URL}), registry.Params{})
	eventually(t, "it is asked", func() bool { return asked.Load() >= 1 && probed(other) != time.Time{} })
	begun := asked.Load()
	for range 10 {
		last := probed(other)
		eventually(t, "another probe", func() bool { return probed(other) != last })
	}
	if n := asked.Load() - begun; n > 1 { // the first router asks once, too
		t.Errorf("an engine without the route is asked %d more times", n)
	}
}
