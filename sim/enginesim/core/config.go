package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Config is the modelled hardware and model of one rank.
type Config struct {
	// Config is the step machine's. One of its Blocks is never used, as in vLLM; PrefixCaching stands for NoCaching.
	enginemodel.Config
	// MaxModelLen bounds prompt and answer together, in tokens.
	MaxModelLen int
	// PrefixCaching keeps the blocks of finished requests for later ones.
	PrefixCaching bool
	// Seed makes the names of blocks; each engine life has its own.
	Seed uint64
	// EarlyEvents publishes a step's events before it is computed (vLLM before 0.11.1), not after.
	EarlyEvents bool
	// Lower is the KV cache below the GPU.
	Lower Lower
}

// DefaultConfig is a 70B model on four GPUs, as docs/simulator.md describes it.
func DefaultConfig() Config {
	return Config{MaxModelLen: 131_072, PrefixCaching: true, Lower: defaultLower(), Config: enginemodel.Config{
		BlockSize: 16, Blocks: 40_000, MaxBatchedTokens: 2048, MaxSeqs: 256, WholePrompts: true,
		Timing: enginemodel.Timing{
			PrefillRate: 8000, HalfContext: 50_000, Base: 10 * time.Millisecond,
			PerSequence: 50 * time.Microsecond, PerContextToken: 17 * time.Nanosecond, Speed: 1,
		},
	}}
}

// Validate reports every bad field.
func (c Config) Validate() error {
	errs := []error{c.model().Validate(), c.Lower.validate()}
	if c.MaxModelLen <= 0 {
		errs = append(errs, errors.New("maximum model length must be above zero"))
	}
	if c.BlockSize > 0 && (c.Blocks-1)*c.BlockSize < c.MaxModelLen {
		errs = append(errs, fmt.Errorf("%d blocks of %d tokens cannot hold one request of %d tokens", c.Blocks-1, c.BlockSize, c.MaxModelLen))
	}
	return errors.Join(errs...)
}

// model is the step machine's configuration.
func (c Config) model() enginemodel.Config {
	m := c.Config
	m.Blocks, m.NoCaching = c.Blocks-1, !c.PrefixCaching
	return m
}
