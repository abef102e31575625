package evaluate

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// AvoidFull vetoes the ranks without memory for the program, unless no other one is left.
func (s *Evaluation) AvoidFull() {
	if len(s.Program.Full) == 0 {
		return
	}
	others := false
	for i := range s.Decision.Candidates {
		cand := &s.Decision.Candidates[i]
		others = others || cand.Veto == decision.VetoNone && !slices.Contains(s.Program.Full, cand.Slot)
	}
	for i := range s.Decision.Candidates {
		if cand := &s.Decision.Candidates[i]; others && cand.Veto == decision.VetoNone && slices.Contains(s.Program.Full, cand.Slot) {
			cand.Veto, s.copying.Moves = decision.VetoMemory, true
		}
	}
}

// Choose picks a candidate, and another one to prefill for it where that costs less. When no other one is left, ranks without memory for
// the program serve, and then ranks that prefill for others.
func (s *Evaluation) Choose() {
	s.spare(false)
	s.evenOut()
	s.pick()
	if s.Decision.Chosen < 0 && s.Pool.Pairs != nil {
		s.spare(true)
		s.pick()
		return
	}
	s.split()
	s.pull()
}

// pick picks a candidate to serve the request whole.
func (s *Evaluation) pick() {
	selector.Choose(&s.Decision)
	if s.Decision.Chosen >= 0 || len(s.Program.Full) == 0 {
		return
	}
	for i := range s.Decision.Candidates {
		if cand := &s.Decision.Candidates[i]; cand.Veto == decision.VetoMemory {
			cand.Veto = decision.VetoNone
		}
	}
	selector.Choose(&s.Decision)
}
