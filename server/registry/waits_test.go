package registry_test

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/registry"
	"github.com/kvpilot/kvpilot/server/replica"
)

// Issue 14, item 16: a router without a file descriptor left says nothing about its replicas.
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
