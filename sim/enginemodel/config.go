package enginemodel

import (
	"errors"
	"fmt"
	"time"
)

// Config is the hardware and the model of one rank.
type Config struct {
	// BlockSize is in tokens. Blocks is the number of usable KV blocks.
	BlockSize int
	Blocks    int
	// MaxBatchedTokens is the token budget of a step, MaxSeqs the most sequences that run at once.
	MaxBatchedTokens int
	MaxSeqs          int
	// WholePrompts admits a sequence only when all its known tokens fit into free blocks, as vLLM does by
	// default since it has scheduler_reserve_full_isl; without it the tokens of its first step suffice.
	WholePrompts bool
	// NoCaching forgets the blocks of ended sequences.
	NoCaching bool
	Timing    Timing
	Adapters  Adapters
}

// Timing is the model of a step's duration: Base, plus PerSequence for each decoding sequence,
// plus PerContextToken for each cached token that these read, plus, for n prompt tokens after c
// tokens of context, n / PrefillRate · (1 + (c + n/2) / HalfContext).
type Timing struct {
	// PrefillRate is in tokens per second at short context.
	PrefillRate float64
	// HalfContext is the context in tokens at which a prompt token costs twice as much.
	HalfContext     float64
	Base            time.Duration
	PerSequence     time.Duration
	PerContextToken time.Duration
	// Speed divides all of it; 2 is twice as fast.
	Speed float64
}

// Validate reports every bad field.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, v float64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%s must be above zero", name))
		}
	}
	positive("block size", float64(c.BlockSize))
	positive("blocks", float64(c.Blocks))
	positive("token budget", float64(c.MaxBatchedTokens))
	positive("sequence limit", float64(c.MaxSeqs))
	positive("prefill rate", c.Timing.PrefillRate)
	positive("half context", c.Timing.HalfContext)
	positive("speed", c.Timing.Speed)
	return errors.Join(append(errs, c.Adapters.validate())...)
}

// Prefill is the time in seconds, before Speed, of computing n prompt tokens after c tokens of context.
func (t *Timing) Prefill(n, c int) float64 {
	return float64(n) / t.PrefillRate * (1 + (float64(c)+float64(n)/2)/t.HalfContext)
}
