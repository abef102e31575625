package evaluate

import (
	"math/rand/v2"
	"sync/atomic"
)

// Dice gives each decision a seed of its own.
type Dice struct{ Seed atomic.Uint64 }

// turn is the first turn of round-robin for a model.
func (d *Dice) turn(model string) uint32 {
	return rand.New(rand.NewPCG(d.Seed.Load(), uint64(len(model)))).Uint32() >> 1
}

func (d *Dice) next() uint64 { return d.Seed.Add(0x9e3779b97f4a7c15) }
