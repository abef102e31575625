package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Register adds a replica, or updates it and renews its lease when it is registered already. A
// lease of zero takes the configured time. It returns the id, which is made from the URL when the
// spec has none, and when the lease ends.
func (r *Registry) Register(ctx context.Context, spec Spec, lease time.Duration) (replica.ID, time.Time, error) {
	given := spec
	spec, err := r.admit(spec)
	if err != nil {
		return "", time.Time{}, err
	}
	given.ID = spec.ID
	var ends time.Time
	err = r.do(ctx, func(c *core) error {
		ends, err = c.register(spec, lease)
		if report := r.params.OnRegistered; err == nil && report != nil {
			report(given, time.Until(ends))
		}
		return err
	})
	return spec.ID, ends, err
}

// admit completes a caller's spec and checks that such a replica may be registered.
func (r *Registry) admit(spec Spec) (Spec, error) {
	spec.APIKeyFile, spec.APIKeyEnv, spec.TLS, spec.Pool = "", "", tlspeer.Config{}, "" // a caller may not read this machine's files
	spec, err := spec.complete(r.config().Events)
	if err != nil {
		return spec, err
	}
	return spec, r.config().Registration.permit(spec)
}

// Renew prolongs a registration by its lease. ErrUnknownReplica means: register again.
func (r *Registry) Renew(ctx context.Context, id replica.ID, lease time.Duration) (time.Time, error) {
	var ends time.Time
	err := r.do(ctx, func(c *core) error {
		if _, ok := c.leases[id]; !ok {
			return ErrUnknownReplica
		}
		ends = c.lease(id, lease)
		return nil
	})
	return ends, err
}

// Deregister removes a registered replica at once.
func (r *Registry) Deregister(ctx context.Context, id replica.ID) error {
	return r.do(ctx, func(c *core) error {
		if _, ok := c.leases[id]; !ok {
			if _, known := c.entries[id]; known {
				return ErrTaken
			}
			return ErrUnknownReplica
		}
		c.deregister(id)
		if report := r.params.OnDeregistered; report != nil {
			report(id)
		}
		return nil
	})
}

func (c *core) register(spec Spec, lease time.Duration) (time.Time, error) {
	if e := c.entries[spec.ID]; e != nil && e.source != sourceRegistered {
		return time.Time{}, ErrTaken
	}
	if _, again := c.leases[spec.ID]; !again && len(c.leases) >= c.r.config().Registration.Max {
		return time.Time{}, fmt.Errorf("%w: %d", ErrFull, len(c.leases))
	}
	if err := c.roomFor(spec); err != nil {
		return time.Time{}, err
	}
	listed := c.sources[sourceRegistered]
	if listed == nil {
		listed = map[replica.ID]Spec{}
		c.sources[sourceRegistered] = listed
	}
	if old, again := listed[spec.ID]; !again || !old.equal(spec) {
		listed[spec.ID] = spec
		c.membership = true
	}
	return c.lease(spec.ID, lease), nil
}

// lease sets when the registration ends.
func (c *core) lease(id replica.ID, lease time.Duration) time.Time {
	conf := c.r.config().Registration
	if lease <= 0 {
		lease = conf.Lease
	}
	ends := time.Now().Add(min(lease, conf.MaxLease))
	c.leases[id] = ends
	if e := c.entries[id]; e != nil {
		e.vitals.lease(ends)
	}
	return ends
}

func (c *core) deregister(id replica.ID) {
	delete(c.leases, id)
	delete(c.sources[sourceRegistered], id)
	c.membership = true
}

// nextExpiry is the time until the first lease ends.
func (c *core) nextExpiry() time.Duration {
	wait := time.Hour
	for _, ends := range c.leases {
		wait = min(wait, time.Until(ends))
	}
	return max(wait, 0)
}

// expire removes the registrations whose lease is over.
func (c *core) expire(now time.Time) {
	for id, ends := range c.leases {
		if !ends.After(now) {
			c.deregister(id)
			c.r.metrics.leasesExpired.Add(c.ctx, 1)
			c.r.log.Warn("registration expired", "replica", id)
		}
	}
}
