package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Waiters are the requests that wait for a rank.
type Waiters interface {
	// Freed notes that the rank has less to do than before.
	Freed(slot replica.Slot)
}

// freedLoad notifies the requests that wait when the rank has less to do.
type freedLoad struct {
	waiters Waiters
	slot    replica.Slot
}

// FirstToken implements Observer.
func (f *freedLoad) FirstToken(time.Time, int) { f.waiters.Freed(f.slot) }

// Progress implements Observer.
func (f *freedLoad) Progress(int) {}

// Ended implements Observer.
func (f *freedLoad) Ended(*ask.End) { f.waiters.Freed(f.slot) }
