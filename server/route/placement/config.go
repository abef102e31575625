package placement

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config has the settings. Defaults live in DefaultConfig alone.
type Config struct {
	// Spread loads adapters in demand on more replicas of their base model, and unloads them there later. Engines need
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and the adapter must have the same path on each of them.
	Spread bool `yaml:"spread"`
	// Interval is the time between two looks at the demand.
	Interval time.Duration `yaml:"interval"`
	// Headroom is on how many times its share of the replicas, by its share of the requests with adapters, an adapter is loaded.
	Headroom float64 `yaml:"headroom"`
	// Idle is how long a replica keeps an adapter that is not needed there any more.
	Idle time.Duration `yaml:"idle"`
	// MaxPerReplica is the number of adapters that a replica lists at most by this rule.
	MaxPerReplica int `yaml:"max_per_replica"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Interval: 5 * time.Second, Headroom: 2, Idle: 10 * time.Minute, MaxPerReplica: 64}
}

// Validate reports every bad field at once.
func (c Config) Validate() error {
	errs := []error{check.AtLeast("idle", c.Idle, 0), check.AtLeast("max_per_replica", c.MaxPerReplica, 1)}
	if c.Interval < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("interval: must be at least 100ms, not %s", c.Interval))
	}
	if !(c.Headroom >= 1 && c.Headroom <= 100) {
		errs = append(errs, errors.New("headroom: must be from 1 to 100"))
	}
	return errors.Join(errs...)
}
