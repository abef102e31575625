package registry

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Registration is a peer's view of a registered replica.
type Registration struct {
	Spec Spec
	// Left is the rest of the lease. Zero: the registration was withdrawn.
	Left time.Duration
}

// Present reports whether there is a replica of the name now.
func (r *Registry) Present(id replica.ID) bool {
	_, ok := r.Snapshot().Replica(id)
	return ok
}

// ApplyDrain applies the result of drain to a replica, known or not; nil ends its drain. The function runs in the order of all other
// changes, so that it sees the changes by this router's callers; it must not block.
func (r *Registry) ApplyDrain(ctx context.Context, id replica.ID, drain func() *Drain) error {
	return r.do(ctx, func(c *core) error {
		if d := drain(); !sameDrain(d, c.drains[id]) {
			c.setDrain(id, d)
		}
		return nil
	})
}

// ApplyRegistration applies the result of registration to a replica, as ApplyDrain does. A replica that is configured or
// discovered here stays as it is.
func (r *Registry) ApplyRegistration(ctx context.Context, id replica.ID, registration func() Registration) error {
	return r.do(ctx, func(c *core) error {
		now := registration()
		if now.Left <= 0 {
			if _, registered := c.leases[id]; registered {
				c.deregister(id)
			}
			return nil
		}
		now.Spec.ID = id
		spec, err := r.settings.admit(now.Spec)
		if err != nil {
			return err
		}
		if _, err := c.register(spec, now.Left); err != nil && !errors.Is(err, ErrTaken) {
			return err
		}
		return nil
	})
}
