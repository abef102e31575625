package number

import (
	"math"
	"sync/atomic"
)

// Float is a float64 that may be read and replaced at once.
type Float struct{ bits atomic.Uint64 }

// Get returns the value.
func (n *Float) Get() float64 { return math.Float64frombits(n.bits.Load()) }

// Set replaces the value.
func (n *Float) Set(v float64) { n.bits.Store(math.Float64bits(v)) }

// Add is safe for concurrent use.
func (n *Float) Add(v float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}
