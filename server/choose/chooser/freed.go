package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// waiters are the requests that wait for a rank.
type waiters interface {
	// freed notes that the rank has less to do than before.
	freed(slot replica.Slot)
}

// freedLoad notifies the requests that wait when the rank has less to do.
type freedLoad struct {
	waiters waiters
	slot    replica.Slot
}

// FirstToken implements Observer.
func (f *freedLoad) FirstToken(time.Time, int) { f.waiters.freed(f.slot) }

// Progress implements Observer.
func (f *freedLoad) Progress(int) {}

// Ended implements Observer.
func (f *freedLoad) Ended(*End) { f.waiters.freed(f.slot) }
