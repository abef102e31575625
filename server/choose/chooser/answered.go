package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// answered learns how long answers are, and how long they take.
type answered struct {
	ask.EndOnly
	lengths   *answers.Lengths
	residence *answers.Residence
	decision  *decision.Decision
	external  bool
}

// Ended implements Observer.
func (a *answered) Ended(end *ask.End) {
	if !end.Completed() {
		return
	}
	if end.Output > 0 && !a.external {
		a.lengths.Add(a.decision.Tenant, end.Output)
	}
	if !end.First.IsZero() {
		a.residence.Add(end.At.Sub(end.First))
	}
}
