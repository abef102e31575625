package follow

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Adapted is a request with a LoRA adapter in the record of adapters. It is an Observer.
type Adapted struct {
	ask.Reporting
	Booking  adapters.Booking
	Clock    *clock.Clock
	Adapting decision.Adapting
	// At is when the rank was chosen, Predicted the time in seconds from then to the first token.
	At        time.Time
	Predicted float64
}

// FirstToken implements Observer: it teaches how long a load takes.
func (a *Adapted) FirstToken(now time.Time, _ int) {
	if a.Adapting.Adapter == decision.AdapterAbsent && a.SeesFirst() && !a.External {
		a.Booking.Learn(now.Sub(a.At).Seconds() - (a.Predicted - float64(a.Adapting.AdapterLoad)))
	}
}

// Progress implements Observer.
func (a *Adapted) Progress(int) {}

// Ended implements Observer.
func (a *Adapted) Ended(end *ask.End) { a.Booking.End(time.Duration(a.Clock.Since(end.At))) }
