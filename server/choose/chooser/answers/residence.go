package answers

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/number"
)

// Residence is the mean time in seconds that a request decodes.
type Residence struct{ number.Float }

// NewResidence begins with ten seconds.
func NewResidence() *Residence {
	r := &Residence{}
	r.Set(10)
	return r
}

// Add takes in the time from the first token to the end.
func (r *Residence) Add(d time.Duration) {
	mean := r.Get()
	r.Set(mean + (d.Seconds()-mean)/64)
}
