package router

import (
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// beginHop begins the story's notes of an attempt; nil when nothing is recorded.
func beginHop(rq *request, a *attempt) *story.Hop {
	return rq.story.Attempt(story.Attempt{Chosen: a.chosen, Replica: a.choice.Replica, Rank: a.choice.Rank, Method: rq.call.method(), Overhead: a.overhead})
}

// follows notes how much of the stream earlier attempts gave.
func (d *delivery) follows() {
	if a := d.attempt; a.point != nil {
		a.hop.Follows(d.scan.Events())
	}
}

// endHop notes that the attempt under way is over, with f when it failed.
func endHop(rq *request, d *delivery, f *failure) {
	h := d.attempt.hop
	if h.Over(d.scan.Events()); h != nil && f != nil {
		rq.story.Failed(h, f.outcome, f.public.OwnWords())
	}
}

// leaveStory ends the story of a request, which is over.
func leaveStory(rq *request, d *delivery, public *apierror.Error) {
	if rq.story == nil {
		return
	}
	of := story.Subject{Route: rq.call.Route, RequestID: strings.Clone(rq.call.RequestID), DecisionID: rq.id}
	if rq.parsed != nil {
		of.Understood, of.Kind, of.Streamed, of.MaxTokens = true, rq.parsed.Prompt.Kind, rq.parsed.Stream, rq.parsed.MaxTokens
		of.Unbodied = rq.question != nil && len(rq.question.Body) == 0
		of.Session = strings.Clone(clip(rq.parsed.Session, 256))
		if rq.pool != nil && rq.pool.Model == rq.parsed.Model {
			of.Model = rq.pool.Model
		} else {
			of.Model = strings.Clone(clip(rq.parsed.Model, 128))
		}
	}
	end := story.Ending{AnswerID: clip(d.scan.ResponseID(), 128), Finish: clip(d.scan.FinishReason(), 32), FirstToken: d.firstToken}
	if d.doubts.cause != retry.CauseNone {
		end.Cause = d.doubts.cause.String()
	}
	end.Usage, end.Counted = d.scan.Usage()
	rq.story.Leave(of, end, public)
}
