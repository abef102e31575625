package waiting

import (
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Counts count the requests that waited in the hold queue, the waits for memory, and the waiting requests whose caller left.
type Counts struct {
	Held   instruments.Total `metric:"kvpilot.chooser.held" unit:"{request}" help:"Requests that had to wait in the hold queue."`
	Memory instruments.Total `metric:"kvpilot.chooser.memory_waits" unit:"{request}" help:"Requests of programs that waited in the router because their context fit in no rank's memory."`
	Left   instruments.Total `metric:"kvpilot.chooser.left" unit:"{request}" help:"Requests whose caller left while they waited in the hold queue."`
}
