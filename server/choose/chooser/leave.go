package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/liveness"
)

// Withdrawal is why a request is withdrawn from its rank.
type Withdrawal uint8

// The reasons.
const (
	// Stalled: the rank makes no progress, or not for this request.
	Stalled Withdrawal = iota
	// Leaving: the requests of its replica are to move to others.
	Leaving
)

// moveLeaving withdraws the requests whose answers have not begun from ranks of replicas that are left. Streams that have begun move by
// themselves: see Choice.ShouldMove.
func (c *Chooser) moveLeaving(vitals []liveness.Vitals, now time.Time) {
	for slot, r := range (*c.ranks.Load())[:len(vitals)] {
		if r == nil {
			continue
		}
		leaving := vitals[slot].Leaving
		if r.leaving.Load() != leaving {
			r.leaving.Store(leaving)
		}
		if !leaving {
			continue
		}
		for _, request := range r.liveness.Unbegun() {
			if choice := request.Owner.(*Choice); c.canMove(choice, now) {
				choice.withdraw(false, Leaving)
			}
		}
	}
}

// ShouldMove reports whether the requests of the replica are to move to others, and one of them could take this one. The holder
// of a stream that has begun asks when the stream can be resumed, and then resumes it there. Any goroutine may call it; it is cheap
// while the replica is not left.
func (c *Choice) ShouldMove() bool {
	return c.rank != nil && c.rank.leaving.Load() && c.chooser.canMove(c, c.chooser.clock())
}
