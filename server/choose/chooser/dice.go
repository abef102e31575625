package chooser

import (
	"math/rand/v2"
	"sync/atomic"
)

// dice gives each decision a seed of its own.
type dice struct{ seed atomic.Uint64 }

// turn is the first turn of round-robin for a model.
func (d *dice) turn(model string) uint32 {
	return rand.New(rand.NewPCG(d.seed.Load(), uint64(len(model)))).Uint32() >> 1
}

func (d *dice) next() uint64 { return d.seed.Add(0x9e3779b97f4a7c15) }
