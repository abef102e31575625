package admission

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// MaxRequests limits the requests that wait, over all models; further ones are rejected.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes limits the bodies of the requests that wait.
	MaxBytes int `yaml:"max_bytes"`
	// MaxWait is the longest time that a request waits. Zero: until the caller's deadline.
	MaxWait time.Duration `yaml:"max_wait"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxRequests: 16384, MaxBytes: 1 << 30, MaxWait: 10 * time.Minute}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if c.MaxRequests < 1 {
		errs = append(errs, fmt.Errorf("max_requests: must be at least 1, not %d", c.MaxRequests))
	}
	if c.MaxBytes < 1 {
		errs = append(errs, fmt.Errorf("max_bytes: must be at least 1, not %d", c.MaxBytes))
	}
	if c.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("max_wait: must not be negative: %s", c.MaxWait))
	}
	return errors.Join(errs...)
}

// Params is what the code passes in. Its zero value is valid.
type Params struct {
	Meter metric.MeterProvider
	// Weight is a tenant's share beside the others'; nil: all have the same.
	Weight func(tenant string) float64
}
