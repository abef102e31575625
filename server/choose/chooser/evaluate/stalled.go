package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// avoidStalled vetoes the ranks that are stalled, unless all are.
func (s *Evaluation) avoidStalled(now time.Time) {
	stalled, left := 0, 0
	for i := range s.Decision.Candidates {
		if s.Decision.Candidates[i].Veto != decision.VetoNone {
			continue
		}
		if r := s.ranks[i]; r != nil && r.Liveness.Avoided(now) {
			stalled++
		} else {
			left++
		}
	}
	if stalled == 0 || left == 0 {
		return
	}
	for i := range s.Decision.Candidates {
		cand := &s.Decision.Candidates[i]
		if r := s.ranks[i]; cand.Veto == decision.VetoNone && r != nil && r.Liveness.Avoided(now) {
			cand.Veto, cand.Silent = decision.VetoStalled, r.Liveness.Silent().Seconds()
		}
	}
}
