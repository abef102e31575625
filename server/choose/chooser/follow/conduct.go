package follow

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Stream is a request's answer in the record of its rank's conduct. It is an Observer. The zero value is in no record.
type Stream struct {
	conduct.Stream
	ask.Reporting
	Rank     *conduct.Rank
	Decision *decision.Decision
	Found    *Found
	// watched is set when the answer is followed, uneven when its pieces do not show its tokens.
	watched, uneven bool
}

// Enter has the record follow the answer. A report of another router or a caller is no evidence: it is
// not known when the engine gave what.
func (s *Stream) Enter(req *ask.Request, rank *conduct.Rank, now time.Time) {
	s.Rank = rank
	if !s.Streamed || s.Leased || req.Quiet {
		return
	}
	s.uneven = req.Uneven || req.AskedBy != "" // whether the clients of another router read is not known here
	uncached := int(s.Decision.Pick().Uncached)
	if s.Decision.Split() != nil {
		uncached = 1
	}
	s.Rank.Enter(&s.Stream, conduct.Work{Uncached: uncached, Parallel: req.Samples, Uneven: s.uneven}, now)
	s.watched = true
}

// FirstToken implements Observer.
func (s *Stream) FirstToken(now time.Time, output int) {
	if output > 0 {
		s.Progress(output)
	}
	s.Begin(now)
}

// Ended implements Observer: it adds the answer to the rank's record.
func (s *Stream) Ended(end *ask.End) {
	whole := end.Completed()
	known := !s.uneven || s.Decision.AskedBy == "" && !end.Counted && end.OutputTokens >= 0
	s.End(end.At, end.Output, whole && known)
	if !whole || s.External || end.ServedBy != "" {
		return
	}
	if s.watched && end.Output > 0 {
		s.Rank.Answered(end.Output, s.Decision.ExpectedOutput)
	}
	if !end.Counted && end.CachedTokens >= 0 && s.Decision.Split() == nil {
		s.Rank.Claimed(s.Found.claimed(), end.CachedTokens)
	}
}
