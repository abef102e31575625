package evaluate

import (
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// shortStep is the time in seconds of a full step below which a request's way to it counts.
	shortStep = 0.2
	// leastRoom is the predicted prefill time in seconds that a rank with short steps may have, unless that is more than two of them.
	leastRoom = 0.1
)

// ShortSteps reports whether the candidate's steps are short for a request's way to them. Its engine runs dry where the next prompt comes late: with
// a GPU of its own the way takes milliseconds, but a tenth of a second where engines share the cores of a machine.
func ShortSteps(cand *decision.Candidate) bool { return cand.FullStep < shortStep }

// room is the predicted prefill time in seconds that a rank may have before a request for it waits in the router; zero: any.
type room float64

// Has reports whether a request may go to the candidate now.
func (r room) Has(cand *decision.Candidate) bool {
	return cand.Backlog+cand.Planned < r.Enough(cand)
}

// Enough is the predicted prefill time from which a rank has enough ahead: a full step, so that the
// engine can fill the next one while the router learns of this one's end, more where its steps are short, and at most hold_above. A rank whose speed is a guess has
// more: it may be that much faster, and a request that was held back on a guess teaches nothing better.
func (r room) Enough(cand *decision.Candidate) float64 {
	most := float64(r)
	if most == 0 { // turned off while requests wait: all are released
		return math.Inf(1)
	}
	if cand.FullStep > 0 {
		most = min(most, max(cand.FullStep, min(leastRoom, 2*cand.FullStep)))
	}
	if cand.Speed == decision.SpeedPrior || cand.Speed == decision.SpeedEngine {
		most *= 1 + cand.Spread
	}
	return most
}

// Soonest counts the ranks that may serve and returns in how long the first of them has room.
func (r room) Soonest(d *decision.Decision) (servers int, soonest time.Duration) {
	least := -1.0
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if !Works(cand) {
			continue
		}
		servers++
		if over := max(0, cand.Backlog-r.Enough(cand)); least < 0 || over < least {
			least = over
		}
	}
	return servers, clock.Duration(max(0, least))
}

// Room is the room on ranks by the settings in force.
func (e *Evaluator) Room() room { return room(e.Settings.Load().HoldAbove) }
