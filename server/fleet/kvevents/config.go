package kvevents

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Workers is the number of goroutines that decode and apply events. Zero: half of the processors, at least two.
	Workers int `yaml:"workers"`
	// QueueBytes limits the memory of batches that are not yet applied, over all ranks; one rank may have an eighth of it. Beyond it
	// batches wait in the engine up to its high-water mark. A larger batch is read when no other waits.
	QueueBytes quantity.Bytes `yaml:"queue_bytes"`
	// MaxMessageBytes limits one batch on the wire; a larger one ends the connection.
	MaxMessageBytes quantity.Bytes `yaml:"max_message_bytes"`
	// Heartbeat is how long a connection may be quiet before a ping; after three unanswered ones it is closed. Zero: no pings.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Probe is how long a feed may be quiet before a replay from its last batch checks for lost events. Zero: no
	// checks.
	Probe time.Duration `yaml:"probe"`
	// ReplayTimeout is how long a replay may make no progress.
	ReplayTimeout time.Duration `yaml:"replay_timeout"`
	// ForgetAfter is how long a rank's blocks are kept while its feed cannot be reached. Zero: without limit.
	ForgetAfter time.Duration `yaml:"forget_after"`
	// ReconnectMax limits the growing pause between attempts to connect.
	ReconnectMax time.Duration `yaml:"reconnect_max"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		QueueBytes:      16 << 20,
		MaxMessageBytes: 32 << 20,
		Heartbeat:       10 * time.Second,
		Probe:           15 * time.Second,
		ReplayTimeout:   5 * time.Second,
		ForgetAfter:     2 * time.Minute,
		ReconnectMax:    5 * time.Second,
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Workers < 0 || c.Workers > 1024, "workers: must be from 0 to 1024, not %d", c.Workers)
	bad(c.QueueBytes < 1<<20, "queue_bytes: must be at least 1MiB, not %s", c.QueueBytes)
	bad(c.MaxMessageBytes < 64<<10, "max_message_bytes: must be at least 64KiB, not %s", c.MaxMessageBytes)
	bad(c.Heartbeat < 0, "heartbeat: must not be negative: %v", c.Heartbeat)
	bad(c.Probe < 0, "probe: must not be negative: %v", c.Probe)
	bad(c.ReplayTimeout <= 0, "replay_timeout: must be positive, not %v", c.ReplayTimeout)
	bad(c.ForgetAfter < 0, "forget_after: must not be negative: %v", c.ForgetAfter)
	bad(c.ReconnectMax <= 0, "reconnect_max: must be positive, not %v", c.ReconnectMax)
	return errors.Join(errs...)
}
