package attempt

import (
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/story"
)

// BeginHop begins the story's notes of an attempt; nil when nothing is recorded.
func BeginHop(rq *intake.Request, a *Attempt) *story.Hop {
	return rq.Story.Attempt(story.Attempt{Chosen: a.chosen, Replica: a.Choice.Replica, Rank: a.Choice.Rank, Method: rq.Call.EngineMethod(), Overhead: a.overhead})
}

// Follows notes how much of the stream earlier attempts gave.
func (d *Delivery) Follows() {
	if a := d.Attempt; a.point != nil {
		a.Hop.Follows(d.Scan.Events())
	}
}

// EndHop notes that the attempt under way is over, with f when it failed.
func EndHop(rq *intake.Request, d *Delivery, f *Failure) {
	h := d.Attempt.Hop
	if h.Over(d.Scan.Events()); h != nil && f != nil {
		rq.Story.Failed(h, f.Outcome, f.Public.OwnWords())
	}
}
