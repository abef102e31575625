package chooser

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// avoidFull vetoes the ranks without memory for the program, unless no other one is left.
func (s *evaluation) avoidFull() {
	if len(s.program.full) == 0 {
		return
	}
	others := false
	for i := range s.d.Candidates {
		cand := &s.d.Candidates[i]
		others = others || cand.Veto == decision.VetoNone && !slices.Contains(s.program.full, cand.Slot)
	}
	for i := range s.d.Candidates {
		if cand := &s.d.Candidates[i]; others && cand.Veto == decision.VetoNone && slices.Contains(s.program.full, cand.Slot) {
			cand.Veto = decision.VetoMemory
		}
	}
}

// choose picks a candidate, and another one to prefill for it where that costs less. When no other one is left, ranks without memory for
// the program serve, and then ranks that prefill for others.
func (s *evaluation) choose() {
	s.spare(false)
	s.pick()
	if s.d.Chosen < 0 && s.pool.Pairs != nil {
		s.spare(true)
		s.pick()
		return
	}
	s.split()
}

// pick picks a candidate to serve the request whole.
func (s *evaluation) pick() {
	selector.Choose(&s.d)
	if s.d.Chosen >= 0 || len(s.program.full) == 0 {
		return
	}
	for i := range s.d.Candidates {
		if cand := &s.d.Candidates[i]; cand.Veto == decision.VetoMemory {
			cand.Veto = decision.VetoNone
		}
	}
	selector.Choose(&s.d)
}
