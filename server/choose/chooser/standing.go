package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// standing is how a rank stands at one moment, whoever asks.
type standing struct {
	visit uint64
	load  load.RankLoad
	rank  *rank
	// busy, returns, saved and residual are those of decision.Candidate.
	busy, returns, saved, residual float64
}

// standing reads how a rank stands, once per visit of the hold queue: what others book meanwhile
// shows when a booking is refused, and forget drops what the visit itself booked.
func (c *Chooser) standing(s *scratch, slot replica.Slot, now time.Time) *standing {
	for int(slot) >= len(s.seen) {
		s.seen = append(s.seen, standing{})
	}
	at := &s.seen[slot]
	if s.visit != 0 && at.visit == s.visit {
		return at
	}
	*at = standing{visit: s.visit, load: c.params.Book.View(slot, now), rank: c.rank(slot)}
	if at.rank != nil {
		l := &at.rank.lately
		left := l.fade(c.since(now))
		at.busy, at.residual = left*l.busy.get(), left*l.squares.get()
		if returns := l.returns.get(); returns > 0 {
			at.returns, at.saved = left*returns, l.saved.get()/returns
		}
	}
	return at
}

// forget has the slot read anew.
func (s *scratch) forget(slot replica.Slot) {
	if int(slot) < len(s.seen) {
		s.seen[slot].visit = 0
	}
}
