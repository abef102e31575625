package router

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// leadBooking is the booking of the replica that computes the prompt of a request, where the replica that answers asks it by itself. The zero value
// is of a request that is served whole.
type leadBooking struct{ lead *chooser.Choice }

// computed notes that the answer has begun: the prompt was computed and its cache was read.
func (p *leadBooking) computed() {
	if p.lead != nil {
		p.lead.FirstToken()
		p.release(decision.EndCompleted)
	}
}

// release ends the booking. Only the first call has an effect.
func (p *leadBooking) release(end decision.End) {
	if lead := p.lead; lead != nil {
		p.lead = nil
		lead.Release(chooser.ResultOf(end))
	}
}
