package retry

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config bounds retries.
type Config struct {
	// Attempts is the largest number of replicas tried for one request, the first included.
	Attempts int `yaml:"attempts"`
	// Ratio is the share of requests that may be retried when many fail. A request's first retry after a lost connection does not count.
	Ratio float64 `yaml:"ratio"`
	// MinPerSecond is the rate of retries that is always allowed.
	MinPerSecond float64 `yaml:"min_per_second"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{Attempts: 3, Ratio: 0.2, MinPerSecond: 5}
}

// Validate reports every invalid field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.AtLeast("attempts", c.Attempts, 1),
		check.Between("ratio", c.Ratio, 0, 1),
		check.AtLeast("min_per_second", c.MinPerSecond, 0),
	)
}
