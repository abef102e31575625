package registry

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Drain stops new requests to a replica; those under way finish. A drain outlives the replica's
// absence, until Undrain.
func (r *Registry) Drain(ctx context.Context, id replica.ID) error {
	return r.setDrain(ctx, id, true)
}

// Undrain lets a drained replica take requests again.
func (r *Registry) Undrain(ctx context.Context, id replica.ID) error {
	return r.setDrain(ctx, id, false)
}

func (r *Registry) setDrain(ctx context.Context, id replica.ID, drain bool) error {
	return r.do(ctx, func(c *core) error {
		e, known := c.entries[id]
		if !known && !c.drained(id) {
			return ErrUnknownReplica
		}
		if drain == c.drained(id) {
			return nil
		}
		c.setDrain(id, e, drain)
		if report := r.params.OnDrain; report != nil {
			report(id, drain)
		}
		return nil
	})
}

// setDrain changes the drain of a replica; e is its entry, or nil while it is absent.
func (c *core) setDrain(id replica.ID, e *entry, drain bool) {
	if drain {
		c.drains[id] = time.Now()
		c.boundDrains()
	} else {
		delete(c.drains, id)
	}
	if e != nil {
		e.dirty = true
	}
	c.r.log.Info("replica drain set", "replica", id, "draining", drain)
}

// boundDrains forgets the oldest drain of an absent replica when there are too many.
func (c *core) boundDrains() {
	if len(c.drains) <= maxDrains {
		return
	}
	var oldest replica.ID
	var at time.Time
	for id, since := range c.drains {
		if _, present := c.entries[id]; !present && (oldest == "" || since.Before(at)) {
			oldest, at = id, since
		}
	}
	delete(c.drains, oldest)
}
