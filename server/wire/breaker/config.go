package breaker

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config sets when a replica is left alone.
type Config struct {
	// Failures in a row that open the breaker. Zero: the breaker never opens.
	Failures int `yaml:"failures"`
	// Rate is the share of failures within Window that opens it, once MinRequests were seen.
	Rate float64 `yaml:"rate"`
	// MinRequests is the number of requests within Window below which Rate says nothing.
	MinRequests int `yaml:"min_requests"`
	// Window is the time over which Rate is taken.
	Window time.Duration `yaml:"window"`
	// OpenFor is how long it stays open at first; each failed trial doubles it, up to MaxOpenFor.
	OpenFor    time.Duration `yaml:"open_for"`
	MaxOpenFor time.Duration `yaml:"max_open_for"`
	// Trials is the number of successful trial requests that close it again.
	Trials int `yaml:"trials"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{
		Failures: 5, Rate: 0.5, MinRequests: 20, Window: 10 * time.Second,
		OpenFor: 5 * time.Second, MaxOpenFor: time.Minute, Trials: 2,
	}
}

// Validate reports every invalid field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.AtLeast("failures", c.Failures, 0),
		check.Between("rate", c.Rate, 0, 1),
		check.AtLeast("min_requests", c.MinRequests, 1),
		check.Positive("window", c.Window),
		check.Positive("open_for", c.OpenFor),
		check.AtLeast("max_open_for", c.MaxOpenFor, c.OpenFor),
		check.AtLeast("trials", c.Trials, 1),
	)
}
