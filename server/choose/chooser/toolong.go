package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// tooLong lets a prompt that no context holds go where the longest one is: its engine words the
// refusal, which is the caller's to act on, while no replica would be one to retry. A replica that
// could hold the prompt and only cannot take it now keeps the veto: a retry may find it.
func (c *Chooser) tooLong(s *scratch, req *Request, model string) {
	d := &s.d
	longest := 0
	for i := range d.Candidates {
		switch d.Candidates[i].Veto {
		case decision.VetoNone:
			return
		case decision.VetoState, decision.VetoExcluded:
			if context := contextOf(req.Replicas[s.owner[i]], model); context == 0 || context >= req.Longest {
				return
			}
		case decision.VetoContext:
			longest = max(longest, contextOf(req.Replicas[s.owner[i]], model))
		default: // the caller's wish, which no retry changes
		}
	}
	if longest == 0 {
		return
	}
	for i := range d.Candidates {
		if cand := &d.Candidates[i]; cand.Veto == decision.VetoContext && contextOf(req.Replicas[s.owner[i]], model) == longest {
			cand.Veto = decision.VetoNone
		}
	}
	d.TooLong, s.held = true, false
}

func contextOf(r *replica.Replica, model string) int {
	m, _ := r.Serves(model)
	return selector.Context(r, m)
}
