package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Drain is a drain in force. It is immutable.
type Drain struct {
	Since time.Time
	// By is the caller that asked for it, Reason the caller's reason; both may be empty.
	By, Reason string
	// Move says that requests under way move to other replicas, as far as no client notices.
	Move bool
	// Ranks are the ranks that drain, in order; nil: the whole replica.
	Ranks []int
}

// DrainOptions are a caller's options of a drain.
type DrainOptions struct {
	By, Reason string
	// Force allows a drain that leaves a model without a ready replica.
	Force bool
	// Move also moves the requests under way.
	Move bool
	// Ranks are the only ranks to drain; none: the whole replica.
	Ranks []int
}

// drains are the operators' drains in force, also of replicas that are not there. Only the core's goroutine touches them.
type drains map[replica.ID]*Drain

// maxDrains bounds the drains remembered for replicas that are not there.
const maxDrains = 10_000

// set changes the drain of a replica, which may be absent; nil ends it. When there are too many, the oldest drain of a replica
// that is not present goes.
func (ds drains) set(id replica.ID, d *Drain, present func(replica.ID) bool) {
	if d == nil {
		delete(ds, id)
		return
	}
	ds[id] = d
	if len(ds) <= maxDrains {
		return
	}
	var oldest replica.ID
	var at time.Time
	for id, d := range ds {
		if !present(id) && (oldest == "" || d.Since.Before(at)) {
			oldest, at = id, d.Since
		}
	}
	delete(ds, oldest)
}

// Drain stops new requests to a replica; requests under way finish, or move. When it returns, the snapshot shows the drain. A drain outlives
// the replica's absence, until Undrain. A drain of a draining replica only replaces the reason, if it has one, and adds the move and the ranks.
// ErrLastReady: the replica, all of whose ranks are to drain, is the last ready one of a model, and Force is not set. ErrNoRank: it has no such rank.
func (r *Registry) Drain(ctx context.Context, id replica.ID, o DrainOptions) error {
	return r.do(ctx, func(c *core) error {
		e, known := c.entries[id]
		old := c.drains[id]
		if !known && old == nil {
			return ErrUnknownReplica
		}
		ranks := 0
		if known {
			ranks = e.ranks()
		}
		added, err := ranksToDrain(o.Ranks, ranks)
		if err != nil {
			return err
		}
		now := &Drain{Since: time.Now(), By: o.By, Reason: o.Reason, Move: o.Move, Ranks: added}
		if old != nil {
			now = old.again(o)
			now.Ranks = joinRanks(old.Ranks, added, ranks)
		}
		if now.Ranks == nil && known && !o.Force && (old == nil || old.Ranks != nil) {
			if model, last := c.lastReady(e); last {
				return fmt.Errorf("%w of model %q", ErrLastReady, model)
			}
		}
		if !sameDrain(old, now) {
			c.changeDrain(id, now)
		}
		return nil
	})
}

// again is the drain after another call for it.
func (d *Drain) again(o DrainOptions) *Drain {
	now := *d
	if o.Reason != "" && o.Reason != d.Reason {
		now.By, now.Reason = o.By, o.Reason
	}
	now.Move = d.Move || o.Move
	return &now
}

// Undrain lets a drained replica, or only some ranks of it, take requests again. That it is not drained is no error.
func (r *Registry) Undrain(ctx context.Context, id replica.ID, ranks ...int) error {
	return r.do(ctx, func(c *core) error {
		e, known := c.entries[id]
		switch old := c.drains[id]; {
		case !known && old == nil:
			return ErrUnknownReplica
		case old == nil:
		case len(ranks) == 0:
			c.changeDrain(id, nil)
		default:
			left, err := ranksLeft(old.Ranks, ranks, e)
			if err != nil {
				return err
			}
			now := *old
			if now.Ranks = left; len(left) == 0 {
				c.changeDrain(id, nil)
			} else if !sameDrain(old, &now) {
				c.changeDrain(id, &now)
			}
		}
		return nil
	})
}

// lastReady returns a model of which e is the only ready replica.
func (c *core) lastReady(e *entry) (model string, last bool) {
	if e.state != replica.StateReady {
		return "", false
	}
	others := map[string]bool{}
	for _, o := range c.entries {
		if o != e && o.state == replica.StateReady {
			for _, m := range o.report.models {
				others[m.ID] = true
			}
		}
	}
	for _, m := range e.report.models {
		if !others[m.ID] {
			return m.ID, true
		}
	}
	return "", false
}

// changeDrain puts a caller's change in force and reports it. A nil drain ends it.
func (c *core) changeDrain(id replica.ID, d *Drain) {
	c.setDrain(id, d)
	c.reporter.Drained(id, d)
}

// setDrain changes the drain of a replica, which may be absent. A nil drain ends it.
func (c *core) setDrain(id replica.ID, d *Drain) {
	c.drains.set(id, d, c.present)
	if d != nil {
		c.log.Info("replica is drained", "replica", id, "by", d.By, "reason", d.Reason)
	} else {
		c.log.Info("replica is not drained any more", "replica", id)
	}
	if e := c.entries[id]; e != nil {
		e.dirty = true
	}
}

func (c *core) present(id replica.ID) bool { return c.entries[id] != nil }

// sameDrain reports whether two drains, which may be nil, are the same for their readers.
func sameDrain(a, b *Drain) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Since.Equal(b.Since) && a.By == b.By && a.Reason == b.Reason && a.Move == b.Move && (a.Ranks == nil) == (b.Ranks == nil) && slices.Equal(a.Ranks, b.Ranks)
}
