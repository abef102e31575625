package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/programs"
)

// ModelPrograms are the programs of the requests that name one model.
type ModelPrograms struct {
	// Model is the model as requests name it.
	Model string
	// Programs are the first ones in the order of names that the filter selects.
	Programs []programs.Program
	// Stats counts all of the model, whatever the filter.
	Stats programs.Stats
	// Replicas is the number of the pool's replicas, Needed the number that would have memory for all programs.
	Replicas, Needed int
}

// Programs returns the programs of each model for which filter returns true, at most so many of each, in no order. It is safe for
// concurrent use.
func (c *Chooser) Programs(filter func(model string) (programs.Filter, bool), most int) []ModelPrograms {
	var list []ModelPrograms
	now := c.clock.Passed()
	for of := range c.room.Models() {
		f, ok := filter(of.Name)
		if !ok {
			continue
		}
		m := ModelPrograms{Model: of.Name, Programs: of.Claims.Ledger.List(&f, most, now)}
		m.Stats, m.Replicas, m.Needed = of.Pressure(false, now)
		list = append(list, m)
	}
	return list
}
