package evaluate

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// wholeUpTo is the number of ranks up to which every record lists them all.
const wholeUpTo = 64

// Recorded copies the decision out of the evaluation's memory, on its own: it is remembered long after the Choice, which leads to the request.
func (e *Evaluator) Recorded(s *Evaluation, req *ask.Request, now time.Time) *decision.Decision {
	d := new(decision.Decision)
	*d = s.Decision
	d.Candidates = nil
	d.Ways = slices.Clone(s.Decision.Ways)
	switch {
	case req.Booking == ask.DryRun || req.Explain:
		d.Candidates = slices.Clone(s.Decision.Candidates)
	case len(s.Decision.Candidates) <= wholeUpTo:
		s.packer.Pack(&d.Ranks, s.Decision.Candidates, s.Pool.Names)
	default:
		s.listing.list(&d.Ranks, &s.Decision.Ranks)
		s.packer.Pack(&d.Ranks, s.listing.kept, nil)
	}
	d.Took = e.Clock.Now().Sub(now)
	return d
}
