package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Register adds a replica, or updates it and renews its lease when it is registered already. A
// lease of zero takes the configured time. It returns the id, which is made from the URL when the
// spec has none, and when the lease ends.
func (r *Registry) Register(ctx context.Context, spec Spec, lease time.Duration) (replica.ID, time.Time, error) {
	given := spec
	spec, err := r.settings.admit(spec)
	if err != nil {
		return "", time.Time{}, err
	}
	given.ID = spec.ID
	var ends time.Time
	err = r.do(ctx, func(c *core) error {
		ends, err = c.register(spec, lease)
		if err == nil {
			c.reporter.Registered(given, time.Until(ends))
		}
		return err
	})
	return spec.ID, ends, err
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
		c.reporter.Deregistered(id)
		return nil
	})
}

func (c *core) register(spec Spec, lease time.Duration) (time.Time, error) {
	limits := &c.settings.now().Registration
	if e := c.entries[spec.ID]; e != nil && e.source != sourceRegistered {
		return time.Time{}, ErrTaken
	}
	if _, again := c.leases[spec.ID]; !again && len(c.leases) >= limits.Max {
		return time.Time{}, fmt.Errorf("%w: %d", ErrFull, len(c.leases))
	}
	if ranks := max(spec.Ranks, 1) + c.origins.registeredRanks(spec.ID); ranks > limits.MaxRanks {
		return time.Time{}, fmt.Errorf("%w: %d, and registry.registration.max_ranks is %d", ErrRanks, ranks, limits.MaxRanks)
	}
	c.origins.register(spec)
	return c.lease(spec.ID, lease), nil
}

// lease sets when the registration ends.
func (c *core) lease(id replica.ID, lease time.Duration) time.Time {
	limits := &c.settings.now().Registration
	if lease <= 0 {
		lease = limits.Lease
	}
	ends := time.Now().Add(min(lease, limits.MaxLease))
	c.leases[id] = ends
	if e := c.entries[id]; e != nil {
		e.vitals.lease(ends)
	}
	return ends
}

func (c *core) deregister(id replica.ID) {
	delete(c.leases, id)
	c.origins.deregister(id)
}

// expire removes the registrations whose lease is over.
func (c *core) expire(now time.Time) {
	for id, ends := range c.leases {
		if !ends.After(now) {
			c.deregister(id)
			c.metrics.LeasesExpired.Add(context.Background(), 1)
			c.log.Warn("registration expired", "replica", id)
		}
	}
}

// leases are when the registrations end.
type leases map[replica.ID]time.Time

// next is the time until the first lease ends.
func (l leases) next() time.Duration {
	wait := time.Hour
	for _, ends := range l {
		wait = min(wait, time.Until(ends))
	}
	return max(wait, 0)
}
