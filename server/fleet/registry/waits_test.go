package registry_test

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// A router without a file descriptor left says nothing about its replicas.
func TestWaits16AProbeThatFindsNoDescriptorSaysNothing(t *testing.T) {
	f := newFleet("a")
	virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		f.set("a", func(h *host) {
			h.fails = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		})
		pass(20 * time.Second)
		wantState(t, r, "a", replica.StateReady)
		f.set("a", func(h *host) { h.fails = syscall.ECONNREFUSED })
		pass(time.Second)
		wantState(t, r, "a", replica.StateUnhealthy)
	})
}

// back brings a replica back and returns how long after its first good answer it is ready, at most.
func back(t *testing.T, r *registry.Registry, f *fleet, comes func(h *host)) time.Duration {
	f.set("a", comes)
	began := time.Now()
	for time.Since(began) < time.Minute {
		pass(10 * time.Millisecond)
		if rep, _ := r.Snapshot().Replica("a"); rep.State == replica.StateReady {
			return time.Since(began)
		}
	}
	t.Error("not ready within a minute")
	return time.Minute
}

// An engine that comes back is ready within a second of its first healthy answer: after its port was
// closed, after it was stopped, and, where its machine was gone, when something else shows it to be alive.
func TestWaits12ReadyASecondAfterHealthAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		goes, comes func(h *host)
		alive       bool
	}{
		"its port was closed":     {func(h *host) { h.status = 0 }, func(h *host) { h.status = 200 }, false},
		"it was stopped":          {func(h *host) { h.hangs = true }, func(h *host) { h.hangs = false }, false},
		"its machine was gone":    {func(h *host) { h.fails = syscall.EHOSTUNREACH }, func(h *host) { h.fails = nil }, true},
		"it said that it is dead": {func(h *host) { h.status = 503 }, func(h *host) { h.status = 200 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet("a")
			virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
				pass(3 * time.Second)
				f.set("a", c.goes)
				pass(3 * time.Minute)
				wantState(t, r, "a", replica.StateUnhealthy)
				if c.alive {
					f.set("a", c.comes)
					r.Alive("a")
				}
				if took := back(t, r, f, c.comes); took > time.Second {
					t.Errorf("ready after %s", took)
				}
			})
		})
	}
}

// The router knows of a replica that stopped long before that is called unhealthy, and which
// ones only are as slow as ever.
func TestWaits12APulseThatIsLate(t *testing.T) {
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.slow = 500 * time.Millisecond })
	virtual(t, f, listed(spec("a"), spec("b")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(3 * time.Second)
		f.set("a", func(h *host) { h.hangs = true })
		f.set("b", func(h *host) { h.slow = 1500 * time.Millisecond })
		pass(1900 * time.Millisecond)
		if p := r.Pulse("a", time.Now()); p.Late < 700*time.Millisecond || p.Asked.IsZero() || p.Answered.IsZero() {
			t.Errorf("a stopped replica 1.9 s later: %+v", p)
		}
		if p := r.Pulse("b", time.Now()); p.Late > 0 {
			t.Errorf("a slow replica: %+v", p)
		}
		wantState(t, r, "a", replica.StateReady)
		pass(5 * time.Second)
		if rep, _ := r.Snapshot().Replica("a"); rep.State != replica.StateUnhealthy || !rep.Mute {
			t.Errorf("7 s later it is %s, mute %v", rep.State, rep.Mute)
		}
		if p := r.Pulse("a", time.Now()); p.Late < 5*time.Second {
			t.Errorf("and its answer is late by %s", p.Late)
		}
		f.set("a", func(h *host) { h.hangs, h.status = false, 503 })
		pass(3 * time.Second)
		if rep, _ := r.Snapshot().Replica("a"); rep.State != replica.StateUnhealthy || rep.Mute {
			t.Errorf("then it says that it is dead: %s, mute %v", rep.State, rep.Mute)
		}
	})
}
