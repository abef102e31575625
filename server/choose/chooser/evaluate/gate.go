package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// bar lists the replicas that pass the filter and get no request now, in s.
func (e *Evaluator) bar(s *Evaluation, f *selector.Filter, req *ask.Request, p *layout.Pool, rules *layout.Rules) []replica.ID {
	if len(req.Avoid) == 0 && !e.Gate.Shut() {
		return nil
	}
	s.ids = s.ids[:0]
	for i, r := range req.Replicas {
		if p.Veto(f, rules, i) == decision.VetoNone {
			s.ids = append(s.ids, r.ID)
		}
	}
	n := len(s.ids)
	s.ids = e.Gate.Bar(s.ids, s.ids[:n:n], req.Avoid, len(req.Exclude))
	return s.ids[n:]
}
