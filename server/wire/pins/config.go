package pins

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config bounds the memory of stored responses.
type Config struct {
	// Max is the number of responses remembered; the least recently used is evicted first.
	Max int `yaml:"max"`
	// TTL forgets a response after this long.
	TTL time.Duration `yaml:"ttl"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{Max: 100_000, TTL: 24 * time.Hour}
}

// Validate reports every invalid field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.AtLeast("max", c.Max, 1),
		check.Positive("ttl", c.TTL),
	)
}
