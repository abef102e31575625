package registry_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
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
	return ok && r.IsLeft(of, 0, now)
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

// Ranks of a replica drain one by one while the others take requests; when all drain, the replica does.
func TestRanksDrain(t *testing.T) {
	a, b := newFakeReplica(t), newFakeReplica(t)
	r := start(t, fast(registry.Spec{ID: "a", URL: a.URL, Ranks: 3}, registry.Spec{ID: "b", URL: b.URL}), registry.Params{})
	eventually(t, "they are ready", func() bool { return state(r, "a") == replica.StateReady && state(r, "b") == replica.StateReady })
	drained := func(want ...int) {
		t.Helper()
		of, _ := r.Snapshot().Replica("a")
		if !slices.Equal(of.DrainedRanks, want) || of.State != replica.StateReady {
			t.Errorf("ranks %v drain in the state %v, want %v while it is ready", of.DrainedRanks, of.State, want)
		}
		for rank := range 3 {
			if got, want := r.IsLeft(of, rank, time.Now()), slices.Contains(want, rank); got != want {
				t.Errorf("rank %d is left: %t, want %t", rank, got, want)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{2}, Move: true}))
	drained(2)
	must(r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{0, 2}}))
	drained(0, 2)
	must(r.Undrain(t.Context(), "a", 2))
	drained(0)
	if err := r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{3}}); !errors.Is(err, registry.ErrNoRank) {
		t.Errorf("a rank that it does not have: %v", err)
	}
	must(r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{1, 2}}))
	if got := state(r, "a"); got != replica.StateDraining {
		t.Errorf("all ranks drain, and the replica is %v", got)
	}
	must(r.Undrain(t.Context(), "a", 0, 1))
	drained(2)
	must(r.Undrain(t.Context(), "a"))
	drained()
	must(r.Drain(t.Context(), "b", registry.DrainOptions{Force: true}))
	must(r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{0, 1}}))
	if err := r.Drain(t.Context(), "a", registry.DrainOptions{Ranks: []int{2}}); !errors.Is(err, registry.ErrLastReady) && err != nil {
		t.Errorf("the last rank of the last replica: %v", err)
	}
}
