package chooser

import (
	"math"
	"sync/atomic"
)

// number is a float64 that may be read and replaced at once.
type number struct{ bits atomic.Uint64 }

func (n *number) get() float64 { return math.Float64frombits(n.bits.Load()) }

func (n *number) set(v float64) { n.bits.Store(math.Float64bits(v)) }

// add is safe for concurrent use.
func (n *number) add(v float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}
