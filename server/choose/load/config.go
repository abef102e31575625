package load

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// MaxReservations limits the requests in flight, own and leased together; further ones are rejected.
	MaxReservations int `yaml:"max_reservations"`
	// Lease is how long a reservation of an external caller lives without a report, by default.
	Lease time.Duration `yaml:"lease"`
	// MaxLease is the longest lease that a caller may ask for.
	MaxLease time.Duration `yaml:"max_lease"`
	// Remembered is the number of ended reservations that are remembered, so that late reports get "ended" instead of "unknown".
	Remembered int `yaml:"remembered"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxReservations: 1 << 20, Lease: time.Minute, MaxLease: time.Hour, Remembered: 1 << 16}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if c.MaxReservations < 1 {
		errs = append(errs, fmt.Errorf("max_reservations: must be at least 1, not %d", c.MaxReservations))
	}
	if c.Lease < time.Second {
		errs = append(errs, fmt.Errorf("lease: must be at least 1s, not %s", c.Lease))
	}
	if c.MaxLease < c.Lease {
		errs = append(errs, fmt.Errorf("max_lease: must be at least lease (%[2]s), not %[1]s", c.MaxLease, c.Lease))
	}
	if c.Remembered < 0 {
		errs = append(errs, fmt.Errorf("remembered: must not be negative: %d", c.Remembered))
	}
	return errors.Join(errs...)
}

// leaseFor bounds the lease that a caller asked for; zero remains zero: the stream owns the reservation.
func (c *Config) leaseFor(asked time.Duration) time.Duration {
	switch {
	case asked == 0:
		return 0
	case asked < 0:
		return c.Lease
	}
	return min(asked, c.MaxLease)
}

// Ranks name the ranks of slots.
type Ranks interface {
	RankOf(slot replica.Slot) (rank replica.Rank, ok bool)
}

// Params has the arguments of the code. Its zero value is valid.
type Params struct {
	Log   *slog.Logger
	Meter metric.MeterProvider
	// Ranks name the slots for the metrics of each rank; nil leaves them out.
	Ranks Ranks
	// Clock is the time; nil takes the system's.
	Clock Clock
}

// Clock is the time. Its readings must not go back.
type Clock interface {
	Now() time.Time
}

// system is the system's clock.
type system struct{}

func (system) Now() time.Time { return time.Now() }
