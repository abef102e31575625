package breaker

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config says when requests are kept away from a replica.
type Config struct {
	// Failures is the number of consecutive failures of the replica, from two requests or more, that open the breaker. Zero: it never opens.
	Failures int `yaml:"failures"`
	// Rate is the share of failures within window that opens it, after min_requests requests.
	Rate float64 `yaml:"rate"`
	// MinRequests is the number of requests within window below which rate is ignored.
	MinRequests int `yaml:"min_requests"`
	// Window is the time over which rate is computed.
	Window time.Duration `yaml:"window"`
	// OpenFor is how long it stays open at first; each failed trial doubles it, up to max_open_for.
	OpenFor time.Duration `yaml:"open_for"`
	// MaxOpenFor is the longest time that it stays open.
	MaxOpenFor time.Duration `yaml:"max_open_for"`
	// Trials is the number of successful trial requests that close it again.
	Trials int `yaml:"trials"`
	// MaxEjected is the largest share of a request's replicas, from 0 to 0.5, that breakers keep it from. Replicas that cannot be reached
	// or asked for a pause do not count. When no other is left, all are used.
	MaxEjected float64 `yaml:"max_ejected"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{
		Failures: 5, Rate: 0.5, MinRequests: 20, Window: 10 * time.Second,
		OpenFor: 5 * time.Second, MaxOpenFor: time.Minute, Trials: 2, MaxEjected: 0.5,
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
		check.Between("max_ejected", c.MaxEjected, 0, 0.5),
	)
}
