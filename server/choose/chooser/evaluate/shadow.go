package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// AddShadow runs the shadow policy on a copy of the decision and records its choice.
func (e *Evaluator) AddShadow(s *Evaluation, req *ask.Request) {
	d := &s.Decision
	t := e.Settings.Or(req.Settings).Of(req.Model)
	if t.Shadow == "" || t.Shadow == d.Policy {
		return
	}
	other := *d
	other.Policy = t.Shadow
	other.Params = t.Params
	s.shadow = append(s.shadow[:0], d.Candidates...)
	other.Candidates = s.shadow
	selector.Choose(&other)
	pick, served := other.Pick(), d.Pick()
	if pick == nil {
		return
	}
	d.Shadow = &decision.Shadow{
		Policy: t.Shadow, Replica: pick.Replica, Rank: pick.Rank, Agrees: pick.Slot == served.Slot, Regret: pick.TTFT - served.TTFT,
	}
}
