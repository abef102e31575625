package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Feeds follow the events of ranks. The index asks them where a rank's feed stands when it copies the rank, and makes a feed
// continue there when it loads one. Methods are called by several goroutines at once, for different slots.
type Feeds interface {
	// Still calls f while no event of the slot is applied. position is nil when no feed could continue there.
	Still(slot replica.Slot, f func(position []byte))
	// Continue makes the feed of slot continue at a position, after a call of fill. larger says that fill brings more than the slot holds.
	Continue(slot replica.Slot, position []byte, larger bool, fill func()) Continued
}

// Continued is the fate of a position.
type Continued uint8

// The answers of Continue.
const (
	ContinuedNone  Continued = iota // the slot has no feed
	ContinuedHere                   // the feed knows better
	ContinuedThere                  // it continues at the position
)

// Claim gives slot the content that a snapshot brought with its feed's position, now that it has a feed.
func (s *snapshots) Claim(slot replica.Slot) {
	r := s.ix.rank(slot)
	if r == nil {
		return
	}
	if from := s.parked.take(r.info.Rank, true); from != nil {
		s.continued(from)
	}
}

// continued gives a loaded rank's content to the rank of its name when that one's feed continues where the content ends.
func (s *snapshots) continued(from *rank) (n Loaded) {
	to := s.ix.named(from.info.Rank)
	if to == nil {
		return s.parked.park(from)
	}
	to.mu.Lock()
	larger := from.size() > to.size()
	to.mu.Unlock()
	switch s.feeds.Continue(to.writer.slot, from.position, larger, func() { n = to.replace(from) }) {
	case ContinuedNone:
		return s.parked.park(from)
	case ContinuedHere:
		n = Loaded{Skipped: 1}
	case ContinuedThere:
	}
	if n.Ranks == 0 {
		s.ix.budget.held.Add(-from.size())
	}
	return n
}

// replace replaces r's blocks by a loaded rank's.
func (r *rank) replace(from *rank) Loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return Loaded{Skipped: 1}
	}
	for _, p := range r.parts {
		r.drop(p)
	}
	r.loaded = false
	return r.take(from)
}

// Doubt makes guesses of all blocks that the rank holds: events were lost that may have removed some. Blocks that no event names
// are forgotten when the rank becomes exact.
func (ix *Index) Doubt(slot replica.Slot) {
	ix.locked(slot, func(r *rank) {
		r.loaded = true
		for _, p := range r.parts {
			p.rev.each(func(name, _ *uint64) { *name |= refGuess })
		}
	})
}
