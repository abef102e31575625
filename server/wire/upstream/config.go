package upstream

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// DialTimeout limits the time to open a connection, TLS included.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// ResponseHeaderTimeout limits the wait for an answer's header, which of an unstreamed one comes with the whole answer. Zero: only
	// the caller's deadline counts.
	ResponseHeaderTimeout time.Duration `yaml:"response_header_timeout"`
	// StallTimeout ends an answer that is silent for this long after its header. A comment in a stream counts as an answer. Zero: never.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// IdleTimeout closes connections without a request. vLLM closes them after 5 s, so it must be shorter.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxIdlePerReplica limits the idle connections kept to one replica.
	MaxIdlePerReplica int `yaml:"max_idle_per_replica"`
	// MaxHeaderBytes limits the header of an answer.
	MaxHeaderBytes quantity.Bytes `yaml:"max_header_bytes"`
	// Retry limits retries on other replicas.
	Retry retry.Config `yaml:"retry"`
	// Breaker stops requests to failing replicas.
	Breaker breaker.Config `yaml:"breaker"`
	// Pins remembers which replica has which stored response.
	Pins pins.Config `yaml:"pins"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{
		DialTimeout:       3 * time.Second,
		IdleTimeout:       4 * time.Second,
		MaxIdlePerReplica: 1024,
		MaxHeaderBytes:    64 << 10,
		Retry:             retry.DefaultConfig(),
		Breaker:           breaker.DefaultConfig(),
		Pins:              pins.DefaultConfig(),
	}
}

// Validate reports every invalid field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.Positive("dial_timeout", c.DialTimeout),
		check.AtLeast("response_header_timeout", c.ResponseHeaderTimeout, 0),
		check.AtLeast("stall_timeout", c.StallTimeout, 0),
		check.Positive("idle_timeout", c.IdleTimeout),
		check.AtLeast("max_idle_per_replica", c.MaxIdlePerReplica, 0),
		check.AtLeast("max_header_bytes", c.MaxHeaderBytes, 4<<10),
		check.Within("retry", c.Retry.Validate()),
		check.Within("breaker", c.Breaker.Validate()),
		check.Within("pins", c.Pins.Validate()),
	)
}
