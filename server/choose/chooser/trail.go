package chooser

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// trail is the memory that the policies have of the requests for one model. It is made for one cursor.
type trail struct {
	cursor atomic.Uint32 // of round-robin
	ring   atomic.Pointer[poolRing]
	tree   atomic.Pointer[selector.Tree]
}

// forget forgets the texts of a rank.
func (t *trail) forget(slot replica.Slot) {
	if tree := t.tree.Load(); tree != nil {
		tree.Remove(slot)
	}
}

// start sets the first turn of round-robin.
func (t *trail) start(turn uint32) { t.cursor.Store(turn) }

// poolRing is the ring of one state of the pool.
type poolRing struct {
	sum  uint64
	ring *selector.Ring
}
