package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// stream is a request's answer in the record of its rank's conduct. It is an Observer. The zero value is in no record.
type stream struct {
	conduct.Stream
	ask.Reporting
	rank     *conduct.Rank
	decision *decision.Decision
	found    *found
	// watched is set when the answer is followed, uneven when its pieces do not show its tokens.
	watched, uneven bool
}

// enter has the record follow the answer. A report of another router or a caller is no evidence: it is
// not known when the engine gave what.
func (s *stream) enter(req *ask.Request, rank *conduct.Rank, now time.Time) {
	s.rank = rank
	if !s.Streamed || s.Leased || req.Quiet {
		return
	}
	s.uneven = req.Uneven || req.AskedBy != "" // whether the clients of another router read is not known here
	uncached := int(s.decision.Pick().Uncached)
	if s.decision.Split() != nil {
		uncached = 1
	}
	s.rank.Enter(&s.Stream, conduct.Work{Uncached: uncached, Parallel: req.Samples, Uneven: s.uneven}, now)
	s.watched = true
}

// FirstToken implements Observer.
func (s *stream) FirstToken(now time.Time, output int) {
	if output > 0 {
		s.Progress(output)
	}
	s.Begin(now)
}

// Ended implements Observer: it adds the answer to the rank's record.
func (s *stream) Ended(end *ask.End) {
	whole := end.Completed()
	known := !s.uneven || s.decision.AskedBy == "" && !end.Counted && end.OutputTokens >= 0
	s.End(end.At, end.Output, whole && known)
	if !whole || s.External || end.ServedBy != "" {
		return
	}
	if s.watched && end.Output > 0 {
		s.rank.Answered(end.Output, s.decision.ExpectedOutput)
	}
	if !end.Counted && end.CachedTokens >= 0 && s.decision.Split() == nil {
		s.rank.Claimed(s.found.claimed(), end.CachedTokens)
	}
}
