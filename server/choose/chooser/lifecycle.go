package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// PrefillCompleted, ReportProgress, Renew and Finish are Choice's FirstToken, Progress and Release
// for callers outside this process, by tenant, reservation id and attempt. They answer as the load book
// does: only load.Applied changed something, and repeating a call never does.

// PrefillCompleted reports the first token.
func (c *Chooser) PrefillCompleted(key load.Key) load.Outcome {
	choice, out := c.find(key)
	if choice == nil {
		return out
	}
	if out = choice.firstToken(); out == load.Applied {
		c.freed(choice.Slot)
	}
	return out
}

// ReportProgress reports the output tokens so far and renews the lease.
func (c *Chooser) ReportProgress(key load.Key, outputTokens int) load.Outcome {
	choice, out := c.find(key)
	if choice == nil {
		return out
	}
	return choice.progress(outputTokens)
}

// Renew keeps the reservation for another lease.
func (c *Chooser) Renew(key load.Key) load.Outcome { return c.params.Book.Renew(key) }

// Finish ends the reservation.
func (c *Chooser) Finish(key load.Key, result Result) load.Outcome {
	choice, out := c.find(key)
	if choice == nil {
		return out
	}
	// That the rank is gone, the router has seen by itself.
	result.Claimed = c.params.Book.Renew(key) != load.Lost
	if !choice.Release(result) {
		return load.Ended
	}
	return load.Applied
}

// find returns the choice of a key, or the outcome that is known instead.
func (c *Chooser) find(key load.Key) (*Choice, load.Outcome) {
	if v, ok := c.booked.Load(bookedName{key.Tenant, key.ID}); ok {
		switch choice := v.(*Choice); {
		case choice.Decision.Attempt == int(key.Attempt):
			return choice, load.Applied
		case choice.Decision.Attempt > int(key.Attempt):
			return nil, load.Stale
		}
		return nil, load.Unknown
	}
	return nil, c.params.Book.Renew(key)
}

// bookedName names the choice of a leased reservation.
type bookedName struct{ tenant, id string }

// expired ends the choice of a lease that ran out.
func (c *Chooser) expired(key load.Key) {
	if v, ok := c.booked.Load(bookedName{key.Tenant, key.ID}); ok {
		if choice := v.(*Choice); choice.Decision.Attempt == int(key.Attempt) {
			choice.Release(Result{End: decision.EndExpired, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		}
	}
}

// sweep ends the choices with an expired lease: the load book has freed them already.
func (c *Chooser) sweep() {
	c.booked.Range(func(name, v any) bool {
		if n := name.(bookedName); !c.live(n) {
			v.(*Choice).Release(Result{End: decision.EndExpired, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		}
		return true
	})
}

func (c *Chooser) live(n bookedName) bool {
	_, live := c.params.Book.Find(n.tenant, n.id)
	return live
}
