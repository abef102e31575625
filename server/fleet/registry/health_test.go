package registry_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func TestHealthThresholds(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		wantState(t, r, "a", replica.StateStarting)
		pass(time.Second)
		wantState(t, r, "a", replica.StateReady)
		f.set("a", func(h *host) { h.status = 503 })
		for r.Snapshot().Details("a").Failures == 0 {
			pass(10 * time.Millisecond)
		}
		wantState(t, r, "a", replica.StateReady) // one failed probe is not enough
		pass(600 * time.Millisecond)             // the second one follows soon
		wantState(t, r, "a", replica.StateUnhealthy)
		if d := r.Snapshot().Details("a"); d.Failures < 2 || d.LastError == "" || d.Probed.IsZero() {
			t.Errorf("details of a failing replica: %+v", d)
		}
		if p, ok := r.Snapshot().Pool("base"); !ok || p.Ready() != 0 {
			t.Error("the model of an unhealthy replica has no pool, or a ready replica")
		}
		f.set("a", func(h *host) { h.status = 200 })
		pass(40 * time.Second)
		wantState(t, r, "a", replica.StateReady)
		if d := r.Snapshot().Details("a"); d.Failures != 0 || d.LastError != "" {
			t.Errorf("details of a healthy replica: %+v", d)
		}
	})
}

func TestARefusedConnectionIsDownAtOnceAndThenARestart(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		pass(time.Second)
		w.take()
		f.set("a", func(h *host) { h.status = 0 })
		pass(3300 * time.Millisecond)
		wantState(t, r, "a", replica.StateUnhealthy)
		f.set("a", func(h *host) { h.status, h.version = 200, "0.25.0" })
		pass(10 * time.Second)
		wantState(t, r, "a", replica.StateReady)
		rep, _ := r.Snapshot().Replica("a")
		if rep.Life != 2 || rep.Version != "0.25.0" {
			t.Errorf("after a restart: life %d, version %s, want 2, 0.25.0", rep.Life, rep.Version)
		}
		if log := w.take(); len(log) != 0 {
			t.Errorf("a restart changed the ranks: %v", log)
		}
		r.NoteRestart("a", time.Now()) // the same restart, seen by its counters
		pass(20 * time.Second)
		r.NoteRestart("a", time.Now()) // another one, too quick for the probes
		pass(time.Second)
		if began := w.restarts(); !slices.Equal(began, []uint64{2, 3}) {
			t.Errorf("restarts told: %v, want lives 2 and 3", began)
		}
	})
}

func TestAnEnginesOwnStartIsBelieved(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		r.NoteStart("nobody", time.Now())
		pass(time.Second)
		start := time.Now().Add(-time.Hour)
		r.NoteStart("a", start)
		r.NoteStart("a", start.Add(time.Second)) // read again, a rounding apart
		f.set("a", func(h *host) { h.status = 0 })
		pass(5 * time.Second)
		wantState(t, r, "a", replica.StateUnhealthy)
		f.set("a", func(h *host) { h.status = 200 })
		pass(time.Minute)
		wantState(t, r, "a", replica.StateReady)
		r.NoteRestart("a", time.Now())
		pass(time.Second)
		if lives := w.restarts(); len(lives) != 0 {
			t.Errorf("a port that was closed for a while made lives %v; the engine is the same", lives)
		}
		r.NoteStart("a", start.Add(30*time.Minute))
		pass(time.Second)
		if lives := w.restarts(); !slices.Equal(lives, []uint64{2}) {
			t.Errorf("another start made lives %v, want 2", lives)
		}
	})
}

func TestAReplicaThatLoadsItsModelIsStarting(t *testing.T) {
	f := newFleet("a", "b")
	f.set("a", func(h *host) { h.status = 0 })
	f.set("b", func(h *host) { h.models = `{"data":[]}` })
	virtual(t, f, listed(spec("a"), spec("b")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(10 * time.Minute)
		wantState(t, r, "a", replica.StateStarting)
		wantState(t, r, "b", replica.StateStarting)
		if n := r.Snapshot().Silent(); n != 2 {
			t.Errorf("%d replicas have not told their models, want 2", n)
		}
		f.set("a", func(h *host) { h.status = 200 })
		pass(3300 * time.Millisecond) // it is not kept waiting by back-off
		wantState(t, r, "a", replica.StateReady)
	})
}

func TestADeadReplicaIsAskedEverMoreRarely(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(10 * time.Second)
		f.set("a", func(h *host) { h.fails = syscall.EHOSTUNREACH })
		pass(10 * time.Minute)
		wantState(t, r, "a", replica.StateUnhealthy)
		probes := f.probes("a")
		last := probes[len(probes)-1].Sub(probes[len(probes)-2])
		if last < 27*time.Second || last > 36*time.Second {
			t.Errorf("a dead replica is asked every %s, want about 30s", last)
		}
		if n := len(probes); n > 40 {
			t.Errorf("%d probes, want fewer than 40", n)
		}
	})
}

func TestReportedFailuresProbeAtOnce(t *testing.T) {
	f := newFleet("a", "b")
	virtual(t, f, listed(spec("a"), spec("b")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(10 * time.Second)
		f.set("a", func(h *host) { h.status = 0 })
		before := len(f.probes("b"))
		for range 1000 {
			r.ReportFailure("a", errors.New("connection reset"))
			r.ReportFailure("b", errors.New("connection reset"))
			r.Alive("b")
		}
		r.ReportFailure("nobody", errors.New("connection reset"))
		pass(100 * time.Millisecond) // a probe of its own accord may have been a moment ago, and two are a tenth of a second apart
		wantState(t, r, "a", replica.StateUnhealthy)
		wantState(t, r, "b", replica.StateReady)
		pass(100 * time.Millisecond)
		if n := len(f.probes("b")) - before; n < 1 || n > 3 {
			t.Errorf("1000 reported failures made %d probes, want 1 to 3", n)
		}
		f.set("a", func(h *host) { h.status = 200 })
		r.Alive("a")
		pass(time.Second)
		wantState(t, r, "a", replica.StateReady)
	})
}

func TestModelsComeAndGo(t *testing.T) {
	f := newFleet("a", "b")
	config := listed(spec("a"), spec("b"))
	config.Aliases = map[string]string{"short": "base", "nothing": "absent"}
	virtual(t, f, config, registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		pass(time.Second)
		w.take()
		f.set("b", func(h *host) {
			h.models = `{"data":[{"id":"tune","parent":"base","max_model_len":null},{"id":"base","root":"/w","parent":null,"max_model_len":4096}]}`
		})
		pass(15 * time.Second)
		s := r.Snapshot()
		p, ok := s.Pool("tune")
		if !ok || p.Adapter != "tune" || len(p.Replicas) != 1 || p.Replicas[0].ID != "b" {
			t.Errorf("adapter pool: %+v", p)
		}
		if rep, _ := s.Replica("b"); rep.Models[0].ID != "base" || rep.Models[0].MaxLen != 4096 || rep.Models[1].Parent != "base" {
			t.Errorf("models of b: %+v, want the base first", rep.Models)
		}
		if p, ok := s.Pool("short"); !ok || p.Model != "short" || p.Served != "base" || len(p.Replicas) != 2 {
			t.Errorf("alias: %+v", p)
		}
		if _, ok := s.Pool("nothing"); ok {
			t.Error("an alias of an absent model has a pool")
		}
		var names []string
		for _, p := range s.Models() {
			names = append(names, p.Model)
		}
		if !slices.Equal(names, []string{"base", "short", "tune"}) {
			t.Errorf("models: %v", names)
		}
		if log := w.take(); len(log) != 0 {
			t.Errorf("new models changed the ranks: %v", log)
		}
	})
}

func TestTheOperatorsModelNamesAndKeyCount(t *testing.T) {
	f := newFleet("a", "b")
	f.set("a", func(h *host) {
		h.key, h.models = "k", `{"data":[{"id":"x","max_model_len":7},{"id":"y"}]}`
	})
	f.set("b", func(h *host) { h.key = "other" })
	a, b := spec("a"), spec("b")
	a.Models, a.APIKey = []string{"x", "z"}, secret.New("k")
	virtual(t, f, listed(a, b), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		rep, _ := r.Snapshot().Replica("a")
		if want := []replica.Model{{ID: "x", MaxLen: 7}, {ID: "z"}}; !slices.Equal(rep.Models, want) {
			t.Errorf("models %+v, want %+v", rep.Models, want)
		}
		wantState(t, r, "b", replica.StateStarting) // its key is wrong
	})
}
