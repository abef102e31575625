package chooser

import (
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/load"
)

// PrefillCompleted, ReportProgress, Renew and Finish are Choice's FirstToken, Progress and Release
// for callers outside this process, by reservation id and attempt. They answer as the load book
// does: only load.Applied changed something, and repeating a call never does.

// PrefillCompleted reports the first token.
func (c *Chooser) PrefillCompleted(id string, attempt int) load.Outcome {
	choice, out := c.find(id, attempt)
	if choice == nil {
		return out
	}
	if out = choice.firstToken(true); out == load.Applied {
		c.freed(choice.Slot)
	}
	return out
}

// ReportProgress reports the output tokens so far and renews the lease.
func (c *Chooser) ReportProgress(id string, attempt, outputTokens int) load.Outcome {
	choice, out := c.find(id, attempt)
	if choice == nil {
		return out
	}
	return choice.progress(outputTokens)
}

// Renew keeps the reservation for another lease.
func (c *Chooser) Renew(id string, attempt int) load.Outcome {
	return c.params.Book.Renew(load.Key{ID: id, Attempt: uint32(attempt)})
}

// Finish ends the reservation.
func (c *Chooser) Finish(id string, attempt int, result Result) load.Outcome {
	choice, out := c.find(id, attempt)
	if choice == nil {
		return out
	}
	if !choice.Release(result) {
		return load.Ended
	}
	return load.Applied
}

// find returns the choice that id and attempt name, or what is known of them instead.
func (c *Chooser) find(id string, attempt int) (*Choice, load.Outcome) {
	if v, ok := c.booked.Load(id); ok {
		switch choice := v.(*Choice); {
		case choice.Decision.Attempt == attempt:
			return choice, load.Applied
		case choice.Decision.Attempt > attempt:
			return nil, load.Stale
		}
		return nil, load.Unknown
	}
	return nil, c.params.Book.Renew(load.Key{ID: id, Attempt: uint32(attempt)})
}

// expired ends the choice of a lease that ran out.
func (c *Chooser) expired(key load.Key) {
	if v, ok := c.booked.Load(key.ID); ok {
		if choice := v.(*Choice); choice.Decision.Attempt == int(key.Attempt) {
			choice.Release(Result{End: decision.EndExpired, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		}
	}
}

// sweep ends the choices whose lease ran out: the load book has freed them already.
func (c *Chooser) sweep() {
	c.booked.Range(func(id, v any) bool {
		if _, live := c.params.Book.Find(id.(string)); !live {
			v.(*Choice).Release(Result{End: decision.EndExpired, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		}
		return true
	})
}
