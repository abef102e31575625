package kvindex

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// BlockCost is the memory in bytes that one held block costs at most: the lookup slot, the
// engine's name for it with its reference count, and their tables' free room.
const BlockCost = 48

// MaxRanks is the largest Config.MaxRanks.
const MaxRanks = 4096

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// MaxBytes limits the index's memory, at 48 bytes per block. At the limit, new blocks of ranks that have used their share are not
	// indexed until engines evict others.
	MaxBytes quantity.Bytes `yaml:"max_bytes"`
	// MaxRanks limits the ranks at one time; every 64 cost 8 bytes per distinct set of ranks.
	MaxRanks int `yaml:"max_ranks"`
	// BeliefTTL is how long a routed prompt is assumed to be in its rank's cache without an event or a first token.
	BeliefTTL time.Duration `yaml:"belief_ttl"`
	// DefaultCapacity is the assumed number of blocks of a rank without events whose replica does not report a number.
	DefaultCapacity int `yaml:"default_capacity"`
	// Snapshot names a file that keeps the blocks of ranks with events across restarts of the router (docs/kv-index.md). Empty: none.
	Snapshot string `yaml:"snapshot"`
	// SnapshotEvery is the time between writes of the file. Zero: it is written only when the router stops.
	SnapshotEvery time.Duration `yaml:"snapshot_every"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MaxBytes: 2 << 30, MaxRanks: 512, BeliefTTL: 10 * time.Second, DefaultCapacity: 16384, SnapshotEvery: 5 * time.Minute,
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if c.MaxBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("max_bytes: must be at least 1MiB, not %s", c.MaxBytes))
	}
	if c.MaxRanks < 1 || c.MaxRanks > MaxRanks {
		errs = append(errs, fmt.Errorf("max_ranks: must be from 1 to %[2]d, not %[1]d", c.MaxRanks, MaxRanks))
	}
	if c.BeliefTTL <= 0 {
		errs = append(errs, fmt.Errorf("belief_ttl: must be positive, not %v", c.BeliefTTL))
	}
	if c.DefaultCapacity < 1 {
		errs = append(errs, fmt.Errorf("default_capacity: must be positive, not %d", c.DefaultCapacity))
	}
	if c.SnapshotEvery < 0 {
		errs = append(errs, fmt.Errorf("snapshot_every: must not be negative: %v", c.SnapshotEvery))
	}
	return errors.Join(errs...)
}
