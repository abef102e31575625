package booking

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
)

// observers are the observers of one choice, in the order in which they are notified.
type observers struct {
	all   [14]ask.Observer // as many as there are kinds
	count int
}

func (o *observers) add(one ask.Observer) {
	o.all[o.count] = one
	o.count++
}

func (o *observers) firstToken(now time.Time, output int) {
	for _, one := range o.all[:o.count] {
		one.FirstToken(now, output)
	}
}

func (o *observers) progress(output int) {
	for _, one := range o.all[:o.count] {
		one.Progress(output)
	}
}

func (o *observers) ended(end *ask.End) {
	for _, one := range o.all[:o.count] {
		one.Ended(end)
	}
}
