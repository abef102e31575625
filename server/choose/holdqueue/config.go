package holdqueue

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// MaxRequests limits the requests that wait, over all models; further ones are rejected.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes limits the bodies of the requests that wait.
	MaxBytes quantity.Bytes `yaml:"max_bytes"`
	// MaxWait is the longest time that a request waits. Zero: until the caller's deadline.
	MaxWait time.Duration `yaml:"max_wait"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxRequests: 16384, MaxBytes: 1 << 30, MaxWait: 10 * time.Minute}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.AtLeast("max_requests", c.MaxRequests, 1),
		check.AtLeast("max_bytes", c.MaxBytes, 1),
		check.AtLeast("max_wait", c.MaxWait, 0),
	)
}

// Params has the arguments of the code. Its zero value is valid.
type Params struct {
	Scope scope.Scope
	// Shares has the tenants' shares of the queue; nil: all have the same.
	Shares Shares
}

// Shares has the tenants' shares of the queue.
type Shares interface {
	// Weight is a tenant's share relative to the other tenants.
	Weight(tenant string) float64
}
