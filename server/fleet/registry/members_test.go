package registry_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func mustRegister(t *testing.T, r *registry.Registry, s registry.Spec, lease time.Duration) replica.ID {
	t.Helper()
	id, ends, err := r.Register(t.Context(), s, lease)
	if err != nil {
		t.Fatalf("Register(%s): %v", s.ID, err)
	}
	if left := time.Until(ends); left <= 0 {
		t.Errorf("Register(%s): the lease ended %s ago", s.ID, -left)
	}
	return id
}

func TestReplicasAreTracked(t *testing.T) {
	f := newFleet("a", "b", "c", "d")
	virtual(t, f, listed(), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		all := func(names ...string) {
			t.Helper()
			var ids []string
			for _, rep := range r.Snapshot().Replicas {
				ids = append(ids, string(rep.ID))
			}
			if !slices.Equal(ids, names) {
				t.Errorf("replicas %v, want %v", ids, names)
			}
		}
		mustRegister(t, r, spec("a"), time.Hour)
		mustRegister(t, r, spec("b"), time.Hour)
		all("a", "b") // Register returns when the snapshot shows it
		mustRegister(t, r, spec("c"), time.Hour)
		mustRegister(t, r, spec("d"), time.Hour)
		all("a", "b", "c", "d")
		for _, id := range []replica.ID{"a", "c"} {
			if err := r.Deregister(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		all("b", "d")
		mustRegister(t, r, spec("a"), time.Hour)
		want := []string{"+a/0=0", "+b/0=1", "+c/0=2", "+d/0=3", "-a=0", "-c=2", "+a/0=0"}
		if log := w.take(); !slices.Equal(log, want) {
			t.Errorf("callbacks %v, want %v", log, want)
		}
	})
}

func TestRegistrationLeases(t *testing.T) {
	f := newFleet("a", "b", "s")
	virtual(t, f, listed(spec("s")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		ctx := t.Context()
		mustRegister(t, r, spec("a"), 10*time.Second)
		mustRegister(t, r, spec("b"), 0) // the configured 30 s
		for range 3 {
			pass(9 * time.Second)
			if ends, err := r.Renew(ctx, "a", 10*time.Second); err != nil || time.Until(ends) != 10*time.Second {
				t.Errorf("Renew: %v, %v", ends, err)
			}
		}
		if left := time.Until(r.Snapshot().Details("a").LeaseEnds); left != 10*time.Second {
			t.Errorf("details say the lease ends in %s, want 10s", left)
		}
		wantState(t, r, "a", replica.StateReady)
		pass(4 * time.Second)
		if _, ok := r.Snapshot().Replica("b"); ok {
			t.Error("b outlives its lease")
		}
		wantState(t, r, "a", replica.StateReady)
		pass(7 * time.Second)
		if _, ok := r.Snapshot().Replica("a"); ok {
			t.Error("a outlives its lease")
		}
		if _, err := r.Renew(ctx, "a", 0); !errors.Is(err, registry.ErrUnknownReplica) {
			t.Errorf("Renew after the lease: %v, want ErrUnknownReplica", err)
		}
		if err := r.Deregister(ctx, "a"); !errors.Is(err, registry.ErrUnknownReplica) {
			t.Errorf("Deregister of an unknown one: %v, want ErrUnknownReplica", err)
		}
		if err := r.Deregister(ctx, "s"); !errors.Is(err, registry.ErrTaken) {
			t.Errorf("Deregister of a configured one: %v, want ErrTaken", err)
		}
		if _, _, err := r.Register(ctx, spec("s"), 0); !errors.Is(err, registry.ErrTaken) {
			t.Errorf("Register over a configured one: %v, want ErrTaken", err)
		}
		if _, _, err := r.Register(ctx, registry.Spec{URL: "10.0.0.7:8000"}, 0); err == nil || !strings.Contains(err.Error(), "did you mean http://10.0.0.7:8000") {
			t.Errorf("a URL without a scheme: %v", err)
		}
		if _, _, err := r.Register(ctx, registry.Spec{URL: "ftp://x"}, 0); err == nil {
			t.Error("Register takes an ftp URL")
		}
	})
}

func TestRegistrationIsBounded(t *testing.T) {
	config := listed()
	config.Registration.Max = 2
	virtual(t, newFleet(), config, registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		for i := range 2 {
			mustRegister(t, r, spec(fmt.Sprint("r", i)), 0)
		}
		if _, _, err := r.Register(t.Context(), spec("r2"), 0); !errors.Is(err, registry.ErrFull) {
			t.Errorf("the third of two: %v, want ErrFull", err)
		}
		mustRegister(t, r, spec("r1"), 0) // renewing needs no room
	})
}

func TestDrainsOutliveTheReplica(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		ctx := t.Context()
		if err := r.Drain(ctx, "a", registry.DrainOptions{Force: true}); !errors.Is(err, registry.ErrUnknownReplica) {
			t.Errorf("Drain of an unknown replica: %v, want ErrUnknownReplica", err)
		}
		mustRegister(t, r, spec("a"), time.Hour)
		pass(time.Second)
		for range 2 { // again changes nothing
			if err := r.Drain(ctx, "a", registry.DrainOptions{Force: true}); err != nil {
				t.Error(err)
			}
		}
		wantState(t, r, "a", replica.StateDraining)
		since, _ := r.Snapshot().Replica("a")
		pass(time.Minute)
		if now, _ := r.Snapshot().Replica("a"); now.Since != since.Since {
			t.Error("probes change since when a replica drains")
		}
		if err := r.Deregister(ctx, "a"); err != nil {
			t.Error(err)
		}
		mustRegister(t, r, spec("a"), time.Hour)
		pass(time.Minute)
		wantState(t, r, "a", replica.StateDraining)
		if !r.Snapshot().Details("a").Drained {
			t.Error("details do not show the drain")
		}
		if err := r.Undrain(ctx, "a"); err != nil {
			t.Error(err)
		}
		wantState(t, r, "a", replica.StateReady)
	})
}

func TestChangedMetadataMakesNewRanks(t *testing.T) {
	base := spec("a")
	base.Events = registry.EventsSpec{Endpoint: "tcp://{host}:5557"}
	bound := base
	bound.Events.Bind = true
	cases := []struct {
		name   string
		from   registry.Spec
		change func(*registry.Spec)
		want   []string
	}{
		{"labels only", base, func(s *registry.Spec) { s.Labels = map[string]string{"zone": "x"} }, nil},
		{"other URL", base, func(s *registry.Spec) { s.URL = "http://b:8000" }, []string{"+a/0=1", "-a=0"}},
		{"other events port", base, func(s *registry.Spec) { s.Events.Endpoint = "tcp://{host}:6000" }, []string{"+a/0=1", "-a=0"}},
		{"more ranks", base, func(s *registry.Spec) { s.Ranks = 2 }, []string{"+a/0=1", "+a/1=2", "-a=0"}},
		// The old subscription must leave its address before the new one can bind it.
		{"bound address", bound, func(s *registry.Spec) { s.Ranks = 2 }, []string{"-a=0", "+a/0=1", "+a/1=2"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, newFleet("a", "b"), listed(), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
				s := c.from
				mustRegister(t, r, s, time.Hour)
				pass(time.Second)
				w.take()
				c.change(&s)
				mustRegister(t, r, s, time.Hour)
				if log := w.take(); !slices.Equal(log, c.want) {
					t.Errorf("callbacks %v, want %v", log, c.want)
				}
				pass(time.Second)
				wantState(t, r, "a", replica.StateReady)
			})
		})
	}
}

func TestBlockSizes(t *testing.T) {
	fixed := spec("b")
	fixed.BlockSize = 32
	virtual(t, newFleet("a", "b"), listed(spec("a"), fixed), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		pass(time.Second)
		w.take()
		size := func(id replica.ID) int {
			synctest.Wait()
			rep, _ := r.Snapshot().Replica(id)
			return rep.BlockSize
		}
		r.Learn("a", registry.Learned{BlockSize: 16})
		r.Learn("a", registry.Learned{Blocks: 1000})
		if got := size("a"); got != 16 {
			t.Errorf("block size %d, want the learned 16", got)
		}
		if log := w.take(); len(log) != 0 {
			t.Errorf("learning the block size changed the ranks: %v", log)
		}
		r.Learn("a", registry.Learned{BlockSize: 64})
		if got := size("a"); got != 64 {
			t.Errorf("block size %d, want the new 64", got)
		}
		if log := w.take(); !slices.Equal(log, []string{"+a/0=2", "-a=0"}) {
			t.Errorf("another block size: callbacks %v, want new ranks", log)
		}
		r.Learn("b", registry.Learned{BlockSize: 16})
		if got := size("b"); got != 32 {
			t.Errorf("block size %d, want the configured 32", got)
		}
	})
}

func TestWatchFollows(t *testing.T) {
	virtual(t, newFleet("a", "b"), listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := make(chan string, 100)
		go func() {
			defer close(changes)
			for c := range r.Watch(ctx) {
				text := [...]string{"added", "updated", "removed", "synced"}[c.Kind]
				if c.Replica != nil {
					text += " " + string(c.Replica.ID) + " " + c.Replica.State.String()
				}
				changes <- text
			}
		}()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for _, text := range want {
				select {
				case got := <-changes:
					if got != text {
						t.Errorf("got %q, want %q", got, text)
					}
				default:
					t.Errorf("got nothing, want %q", text)
				}
			}
		}
		expect("added a ready", "synced")
		mustRegister(t, r, spec("b"), time.Hour)
		pass(time.Second)
		expect("added b starting", "updated b ready")
		_ = r.Drain(ctx, "a", registry.DrainOptions{Force: true}) // seen in the next line
		expect("updated a draining")
		_ = r.Deregister(ctx, "b") // seen in the next line
		expect("removed b ready")
		cancel()
		synctest.Wait()
		if _, open := <-changes; open {
			t.Error("the watch goes on after its context ended")
		}
	})
}

// Random comings and goings; the watcher checks each callback and each snapshot.
func TestChurnKeepsThePromises(t *testing.T) {
	for seed := range uint64(20) {
		virtual(t, newFleet("a", "b", "c"), listed(), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
			dice := rand.New(rand.NewPCG(seed, 3))
			ctx := t.Context()
			for range 200 {
				s := spec(string(rune('a' + dice.IntN(6))))
				switch dice.IntN(6) {
				case 0, 1:
					s.Ranks = 1 + dice.IntN(3)
					mustRegister(t, r, s, time.Duration(1+dice.IntN(20))*time.Second)
				case 2:
					_ = r.Deregister(ctx, s.ID) // may be unknown
				case 3:
					_ = r.Drain(ctx, s.ID, registry.DrainOptions{Force: true}) // may be unknown
				case 4:
					r.Learn(s.ID, registry.Learned{BlockSize: 16 << dice.IntN(2)})
				default:
					pass(time.Duration(dice.IntN(5)) * time.Second)
				}
			}
			pass(2 * time.Hour)
			if n := len(r.Snapshot().Replicas); n != 0 {
				t.Errorf("%d replicas after all leases ended", n)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.inUse) != 0 {
				t.Errorf("slots left: %v", w.inUse)
			}
		})
	}
}

// Which pool a name means, and which no name.
func TestNamesOfPools(t *testing.T) {
	several := func(t *testing.T, aliases map[string]string, models ...string) *registry.Snapshot {
		t.Helper()
		var specs []registry.Spec
		for i, list := range models {
			f := newFakeReplica(t)
			f.models = list
			specs = append(specs, registry.Spec{ID: replica.ID(fmt.Sprint("r", i)), URL: f.URL})
		}
		c := fast(specs...)
		c.Aliases = aliases
		r := start(t, c, registry.Params{})
		for deadline := time.Now().Add(20 * time.Second); r.Snapshot().Silent() > 0 || len(r.Snapshot().Replicas) < len(models); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the replicas did not say what they serve")
			}
		}
		return r.Snapshot()
	}
	const two = `{"data":[{"id":"base"},{"id":"alias-of-base"},{"id":"tune","parent":"base"},{"id":"base:exact","parent":"base"}]}`
	one := several(t, map[string]string{"short": "base"}, two, `{"data":[{"id":"base"}]}`)
	if p, ok := one.Unnamed(); !ok || p.Served != "base" || p.Adapter != "" || len(p.Replicas) != 2 {
		t.Errorf("no name: %+v, %v; want the base model that both list first", p, ok)
	}
	for name, want := range map[string]string{"base": "base", "short": "base", "tune": "tune", "base:tune": "tune", "short:tune": "tune", "base:exact": "base:exact", "base:other": "", "other:tune": "", ":tune": "", "base:": ""} {
		p, ok := one.Pool(name)
		if ok != (want != "") || ok && p.Served != want {
			t.Errorf("%q: %+v, %v; want %q", name, p, ok, want)
		}
	}
	if p, ok := several(t, nil, two, `{"data":[{"id":"another"}]}`).Unnamed(); ok {
		t.Errorf("no name where two models are served: %+v", p)
	}
	if p, ok := one.Pool("tune:tune"); ok {
		t.Errorf("an adapter of an adapter: %+v", p)
	}
}

func TestADrainHasAReasonAndLeavesEachModelAReplica(t *testing.T) {
	f := newFleet("a", "b")
	virtual(t, f, listed(spec("a"), spec("b")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		ctx := t.Context()
		pass(time.Second)
		drain := func(id replica.ID, o registry.DrainOptions) error { return r.Drain(ctx, id, o) }
		if err := drain("a", registry.DrainOptions{By: "ops", Reason: "new driver"}); err != nil {
			t.Fatal(err)
		}
		first := *r.Snapshot().Details("a").Drain
		if first.By != "ops" || first.Reason != "new driver" || !first.Since.Equal(time.Now()) {
			t.Errorf("the drain is %+v", first)
		}
		if err := drain("b", registry.DrainOptions{}); !errors.Is(err, registry.ErrLastReady) {
			t.Errorf("the last ready replica: %v, want ErrLastReady", err)
		}
		wantState(t, r, "b", replica.StateReady)
		pass(time.Minute)
		for _, again := range []struct {
			reason string
			move   bool
			want   registry.Drain
		}{
			{"", false, first},
			{"new disk", false, registry.Drain{Since: first.Since, By: "night", Reason: "new disk"}},
			{"", true, registry.Drain{Since: first.Since, By: "night", Reason: "new disk", Move: true}},
			{"", false, registry.Drain{Since: first.Since, By: "night", Reason: "new disk", Move: true}},
		} {
			if err := drain("a", registry.DrainOptions{By: "night", Reason: again.reason, Move: again.move}); err != nil {
				t.Error(err)
			}
			if got := *r.Snapshot().Details("a").Drain; !reflect.DeepEqual(got, again.want) {
				t.Errorf("drained again for %q: %+v, want %+v", again.reason, got, again.want)
			}
		}
		if err := drain("b", registry.DrainOptions{Force: true}); err != nil {
			t.Errorf("forced: %v", err)
		}
		for _, id := range []replica.ID{"a", "b", "b"} { // a second time is no error
			if err := r.Undrain(ctx, id); err != nil {
				t.Error(err)
			}
			wantState(t, r, id, replica.StateReady)
		}
		if d := r.Snapshot().Details("a").Drain; d != nil {
			t.Errorf("after Undrain: %+v", *d)
		}
		// What is not ready serves nothing that its drain could take away.
		f.set("b", func(h *host) { h.status = 0 })
		pass(time.Minute)
		wantState(t, r, "b", replica.StateUnhealthy)
		if err := drain("b", registry.DrainOptions{}); err != nil {
			t.Errorf("an unhealthy replica: %v", err)
		}
	})
}
