package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// MaxBodyBytes limits a request body, over gRPC too; larger ones, and bodies of more than four ninths of max_bodies_bytes, are
	// rejected with 413.
	MaxBodyBytes quantity.Bytes `yaml:"max_body_bytes"`
	// MaxBodiesBytes limits the bodies of all requests in progress and the answers that wait for their readers, REST and gRPC together;
	// further requests are rejected with 429. A tenant, or the address of a client without one, takes at most half of the free room.
	// Allow twice the mean body times the requests in flight; the process needs about twice as much memory. Zero: five sixteenths of
	// memory.max_bytes, of less than 1 GiB down to a quarter.
	MaxBodiesBytes quantity.Bytes `yaml:"max_bodies_bytes"`
	// BodyTimeout limits the time in which a client sends its body, over gRPC too.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	// StallTimeout ends an answer when its client reads nothing for this long, over gRPC and at the admin address too.
	// Zero: never.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// SSEKeepAlive is how long a client of a stream gets nothing, from the choice of a replica on, before a comment (": keep-alive"). The
	// first one of a request without an answer sends the head with status 200: a later error is the last event of the stream. Zero: no
	// comments.
	SSEKeepAlive time.Duration `yaml:"sse_keep_alive"`
	// AllowOrigins lists the web origins with pages that may call the router (CORS), for example
	// "https://chat.example.com"; "*" allows all. Empty: none.
	AllowOrigins []string `yaml:"allow_origins"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MaxBodyBytes: 64 << 20,
		BodyTimeout:  2 * time.Minute,
		StallTimeout: 2 * time.Minute,
		SSEKeepAlive: 15 * time.Second,
	}
}

// unknownBodies is MaxBodiesBytes where it is not set and the memory has no limit.
const unknownBodies = 160 << 20

// Bodies is the limit of all bodies and answers.
func (c Config) Bodies() int64 {
	return int64(cmp.Or(c.MaxBodiesBytes, max(unknownBodies, c.MaxBodyBytes)))
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	errs := []error{
		check.Positive("max_body_bytes", c.MaxBodyBytes),
		check.That(c.MaxBodiesBytes == 0 || c.MaxBodiesBytes >= c.MaxBodyBytes, "max_bodies_bytes", "must be 0 or at least max_body_bytes (%s), not %s", c.MaxBodyBytes, c.MaxBodiesBytes),
		check.Positive("body_timeout", c.BodyTimeout),
		check.AtLeast("stall_timeout", c.StallTimeout, 0),
		check.AtLeast("sse_keep_alive", c.SSEKeepAlive, 0),
	}
	for i, origin := range c.AllowOrigins {
		if origin == "*" {
			continue
		}
		if u, err := url.Parse(origin); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			errs = append(errs, fmt.Errorf("allow_origins[%d]: must be an origin such as https://chat.example.com, not %q", i, origin))
		}
	}
	return errors.Join(errs...)
}
