package core

import (
	"errors"
	"fmt"
	"time"
)

// Config is the modelled hardware and model of one rank.
type Config struct {
	// BlockSize is in tokens. Blocks counts the KV blocks; one of them is never used, as in vLLM.
	BlockSize int
	Blocks    int
	// MaxModelLen bounds prompt and answer together, in tokens.
	MaxModelLen int
	// MaxBatchedTokens is the token budget of a step, MaxSeqs the most sequences that run at once.
	MaxBatchedTokens int
	MaxSeqs          int
	// PrefixCaching keeps the blocks of finished requests for later ones.
	PrefixCaching bool
	// Seed makes the names of blocks; each engine life has its own.
	Seed uint64
	// EarlyEvents publishes a step's events before it is computed (vLLM before 0.11.1), not after.
	EarlyEvents bool
	Timing      Timing
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

// DefaultConfig is a 70B model on four GPUs, as docs/simulator.md describes it.
func DefaultConfig() Config {
	return Config{
		BlockSize: 16, Blocks: 40_000, MaxModelLen: 131_072,
		MaxBatchedTokens: 2048, MaxSeqs: 256, PrefixCaching: true,
		Timing: Timing{
			PrefillRate: 8000, HalfContext: 50_000, Base: 10 * time.Millisecond,
			PerSequence: 50 * time.Microsecond, PerContextToken: 17 * time.Nanosecond, Speed: 1,
		},
	}
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
	positive("blocks", float64(c.Blocks-1))
	positive("maximum model length", float64(c.MaxModelLen))
	positive("token budget", float64(c.MaxBatchedTokens))
	positive("sequence limit", float64(c.MaxSeqs))
	positive("prefill rate", c.Timing.PrefillRate)
	positive("half context", c.Timing.HalfContext)
	positive("speed", c.Timing.Speed)
	if c.BlockSize > 0 && (c.Blocks-1)*c.BlockSize < c.MaxModelLen {
		errs = append(errs, fmt.Errorf("%d blocks of %d tokens cannot hold one request of %d tokens", c.Blocks-1, c.BlockSize, c.MaxModelLen))
	}
	return errors.Join(errs...)
}

// prefill is the cost of computing n prompt tokens after c tokens of context.
func (t Timing) prefill(n, c int) time.Duration {
	s := float64(n) / t.PrefillRate * (1 + (float64(c)+float64(n)/2)/t.HalfContext)
	return time.Duration(s * float64(time.Second))
}

// scale applies the speed-up.
func (t Timing) scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) / t.Speed)
}
