package router

import (
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/story"
)

// beginHop begins the story's notes of an attempt; nil when nothing is recorded.
func beginHop(rq *intake.Request, a *attempt) *story.Hop {
	return rq.Story.Attempt(story.Attempt{Chosen: a.chosen, Replica: a.choice.Replica, Rank: a.choice.Rank, Method: rq.Call.EngineMethod(), Overhead: a.overhead})
}

// follows notes how much of the stream earlier attempts gave.
func (d *delivery) follows() {
	if a := d.attempt; a.point != nil {
		a.hop.Follows(d.scan.Events())
	}
}

// endHop notes that the attempt under way is over, with f when it failed.
func endHop(rq *intake.Request, d *delivery, f *failure) {
	h := d.attempt.hop
	if h.Over(d.scan.Events()); h != nil && f != nil {
		rq.Story.Failed(h, f.outcome, f.public.OwnWords())
	}
}
