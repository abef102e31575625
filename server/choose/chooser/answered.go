package chooser

import (
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// answered learns how long answers are, and how long they take.
type answered struct {
	endOnly
	lengths   *lengths
	residence *residence
	decision  *decision.Decision
	external  bool
}

// Ended implements Observer.
func (a *answered) Ended(end *End) {
	if !end.completed() {
		return
	}
	if end.Output > 0 && !a.external {
		a.lengths.add(a.decision.Tenant, end.Output)
	}
	if !end.First.IsZero() {
		a.residence.add(end.At.Sub(end.First))
	}
}
