package past

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Trail is the memory that the policies have of the requests for one model. It is made for one cursor.
type Trail struct {
	cursor atomic.Uint32 // of round-robin
	ring   atomic.Pointer[poolRing]
	tree   atomic.Pointer[selector.Tree]
}

// Forget forgets the texts of a rank.
func (t *Trail) Forget(slot replica.Slot) {
	if tree := t.tree.Load(); tree != nil {
		tree.Remove(slot)
	}
}

// Start sets the first turn of round-robin.
func (t *Trail) Start(turn uint32) { t.cursor.Store(turn) }

// poolRing is the ring of one state of the pool.
type poolRing struct {
	sum  uint64
	ring *selector.Ring
}
