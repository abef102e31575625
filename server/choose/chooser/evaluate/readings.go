package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// reading is a rank's state at one moment.
type reading struct {
	visit uint64
	load  load.RankLoad
	busy  float64 // as in decision.Pace
	decision.Revisits
}

// readings are the loads that were read. The zero value is outside of a visit of the hold queue.
type readings struct {
	// seen has a visit's readings of the ranks, by slot; an entry of an earlier visit
	// is not valid. visit is 0 outside of a visit.
	seen  []reading
	Visit uint64
	once  reading // the last one outside of a visit
	near  uint64  // the sum of the words that approach has read, which has no meaning
	// report is the engine's of the candidate whose load is read.
	report reports.Report
}

// gauge is a moment at which ranks are read.
type gauge struct {
	views load.Views
	now   int64 // on the chooser's scale
}

// reading reads how a rank stands, once per visit of the hold queue: a booking by others during the visit shows when
// a booking is refused, and forget drops readings that the visit's own bookings changed.
func (r *readings) reading(g *gauge, slot replica.Slot, rk *rank.Rank) *reading {
	at := &r.once
	if r.Visit != 0 {
		for int(slot) >= len(r.seen) {
			r.seen = append(r.seen, reading{})
		}
		if at = &r.seen[slot]; at.visit == r.Visit {
			return at
		}
		at.visit = r.Visit
	}
	g.views.Read(slot, &at.load)
	at.busy, at.Revisits = 0, decision.Revisits{}
	if rk != nil {
		at.busy = rk.Lately.Read(g.now, &at.Revisits)
	}
	return at
}

const (
	// ahead is how many ranks are brought near at once; up to alreadyNear ranks all are in the processor's cache anyway.
	ahead       = 16
	alreadyNear = 256
)

// approach reads a little of each of the next candidates from i on: their accounts lie far apart in memory, and the processor fetches several at a
// time if nothing is computed in between.
func (r *readings) approach(g *gauge, cands []decision.Candidate, ranks []*rank.Rank, i int) {
	end := min(i+ahead, len(ranks))
	for j := i; j < end; j++ {
		g.views.Approach(cands[j].Slot)
		if rk := ranks[j]; rk != nil {
			r.near += rk.Near()
		}
	}
	for j := i; j < end; j++ {
		if rk := ranks[j]; rk != nil {
			r.near += uint64(rk.Model.Load().Samples)
		}
	}
}

// Forget makes the next reading of the slot a fresh one.
func (r *readings) Forget(slot replica.Slot) {
	if int(slot) < len(r.seen) {
		r.seen[slot].visit = 0
	}
}
