package remote

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings of an operator.
type Config struct {
	// Timeout limits one call including its retries; the caller's deadline may be sooner.
	Timeout time.Duration `yaml:"timeout"`
	// HealthPeriod is the time between probes of endpoints that were not used or that failed. Zero: no probes.
	HealthPeriod time.Duration `yaml:"health_period"`
	// TTL removes an endpoint that was not used for this long. Zero: never.
	TTL time.Duration `yaml:"ttl"`
	// MaxEndpoints limits the known endpoints; an idle or unhealthy one is evicted.
	MaxEndpoints int `yaml:"max_endpoints"`
	// Concurrency limits the concurrent calls to one replica; further ones wait.
	Concurrency int `yaml:"concurrency"`
	// MaxAnswerBytes limits the size of one answer.
	MaxAnswerBytes quantity.Bytes `yaml:"max_answer_bytes"`
}

// DefaultConfig has the defaults.
func DefaultConfig() Config {
	return Config{
		Timeout:        5 * time.Second,
		HealthPeriod:   30 * time.Second,
		TTL:            5 * time.Minute,
		MaxEndpoints:   100,
		Concurrency:    8,
		MaxAnswerBytes: 64 << 20,
	}
}

// Validate reports every bad field, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if c.Timeout <= 0 || c.Timeout > 5*time.Minute {
		errs = append(errs, fmt.Errorf("timeout: must be above 0 and at most 5m, not %v", c.Timeout))
	}
	if c.HealthPeriod < 0 {
		errs = append(errs, fmt.Errorf("health_period: must not be negative: %v", c.HealthPeriod))
	}
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("ttl: must not be negative: %v", c.TTL))
	}
	if c.MaxEndpoints < 1 {
		errs = append(errs, fmt.Errorf("max_endpoints: must be at least 1, not %d", c.MaxEndpoints))
	}
	if c.Concurrency < 1 || c.Concurrency > 1024 {
		errs = append(errs, fmt.Errorf("concurrency: must be from 1 to 1024, not %d", c.Concurrency))
	}
	if c.MaxAnswerBytes < 1<<10 {
		errs = append(errs, fmt.Errorf("max_answer_bytes: must be at least 1KiB, not %s", c.MaxAnswerBytes))
	}
	return errors.Join(errs...)
}
