package chooser

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// wholeUpTo is the number of ranks up to which every record lists them all.
const wholeUpTo = 64

// recorded copies the decision out of the evaluation's memory, on its own: it is remembered long after the Choice, which leads to the request.
func (e *evaluator) recorded(s *evaluation, req *ask.Request, now time.Time) *decision.Decision {
	d := new(decision.Decision)
	*d = s.d
	d.Candidates = nil
	d.Ways = slices.Clone(s.d.Ways)
	switch {
	case req.Booking == ask.DryRun || req.Explain:
		d.Candidates = slices.Clone(s.d.Candidates)
	case len(s.d.Candidates) <= wholeUpTo:
		s.packer.Pack(&d.Ranks, s.d.Candidates, s.pool.Names)
	default:
		s.listing.list(&d.Ranks, &s.d.Ranks)
		s.packer.Pack(&d.Ranks, s.listing.kept, nil)
	}
	d.Took = e.clock.Now().Sub(now)
	return d
}
