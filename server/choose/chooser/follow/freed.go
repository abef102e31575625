package follow

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Waiters are the requests that wait for a rank.
type Waiters interface {
	// Freed notes that the rank has less to do than before.
	Freed(slot replica.Slot)
	// Landed notes that a copy of a prompt's beginning has come to the rank.
	Landed(slot replica.Slot)
}

// Freed notifies the requests that wait when the rank has less to do.
type Freed struct {
	Waiters Waiters
	Slot    replica.Slot
}

// FirstToken implements Observer.
func (f *Freed) FirstToken(time.Time, int) { f.Waiters.Freed(f.Slot) }

// Progress implements Observer.
func (f *Freed) Progress(int) {}

// Ended implements Observer.
func (f *Freed) Ended(*ask.End) { f.Waiters.Freed(f.Slot) }
