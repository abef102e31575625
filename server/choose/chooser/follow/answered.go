package follow

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Answered learns how long answers are, and how long they take.
type Answered struct {
	ask.EndOnly
	Lengths   *answers.Lengths
	Residence *answers.Residence
	Decision  *decision.Decision
	External  bool
}

// Ended implements Observer.
func (a *Answered) Ended(end *ask.End) {
	if !end.Completed() {
		return
	}
	if end.Output > 0 && !a.External {
		a.Lengths.Add(a.Decision.Tenant, end.Output)
	}
	if !end.First.IsZero() {
		a.Residence.Add(end.At.Sub(end.First))
	}
}
