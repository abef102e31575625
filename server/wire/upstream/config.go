package upstream

import (
	"errors"
	"fmt"
	"time"
)

// The transports.
const (
	// TransportLean is kvpilot's own HTTP/1.1 client connection.
	TransportLean = "lean"
	// TransportStd is net/http's transport.
	TransportStd = "std"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Transport is the HTTP client in use: "lean", or "std" for net/http's.
	Transport string `yaml:"transport"`
	// DialTimeout bounds a connection's opening, TLS included.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// ResponseHeaderTimeout bounds the wait for an answer's head, which comes with the whole answer when it is
	// not streamed. Zero: only the caller's deadline bounds it.
	ResponseHeaderTimeout time.Duration `yaml:"response_header_timeout"`
	// StallTimeout ends an answer of which nothing came for this long after its head. Zero: never.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// IdleTimeout closes connections without a request. vLLM closes them after 5 s, so it must be shorter.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxIdlePerReplica bounds the idle connections kept to one replica.
	MaxIdlePerReplica int `yaml:"max_idle_per_replica"`
	// MaxHeaderBytes bounds the head of an answer.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// Retry bounds retries on other replicas.
	Retry RetryConfig `yaml:"retry"`
	// Breaker keeps requests away from failing replicas.
	Breaker BreakerConfig `yaml:"breaker"`
	// Pins remembers where stored responses are.
	Pins PinsConfig `yaml:"pins"`
}

// RetryConfig bounds retries.
type RetryConfig struct {
	// Attempts is the largest number of replicas tried for one request, the first included.
	Attempts int `yaml:"attempts"`
	// Ratio is the share of requests that may be retried when many fail. A request's first retry after its
	// connection broke is not counted: a replica that dies costs no request that had not begun.
	Ratio float64 `yaml:"ratio"`
	// MinPerSecond is the rate of retries that is always allowed.
	MinPerSecond float64 `yaml:"min_per_second"`
}

// BreakerConfig sets when a replica is left alone.
type BreakerConfig struct {
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

// PinsConfig bounds the memory of stored responses.
type PinsConfig struct {
	// Max is the number of responses remembered; the least recently used goes first.
	Max int `yaml:"max"`
	// TTL forgets a response after this long.
	TTL time.Duration `yaml:"ttl"`
}

// DefaultConfig holds the defaults.
func DefaultConfig() Config {
	return Config{
		Transport:         TransportLean,
		DialTimeout:       3 * time.Second,
		IdleTimeout:       4 * time.Second,
		MaxIdlePerReplica: 1024,
		MaxHeaderBytes:    64 << 10,
		Retry:             RetryConfig{Attempts: 3, Ratio: 0.2, MinPerSecond: 5},
		Breaker: BreakerConfig{
			Failures: 5, Rate: 0.5, MinRequests: 20, Window: 10 * time.Second,
			OpenFor: 5 * time.Second, MaxOpenFor: time.Minute, Trials: 2,
		},
		Pins: PinsConfig{Max: 100_000, TTL: 24 * time.Hour},
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Transport == TransportLean || c.Transport == TransportStd, "transport: %q is neither %q nor %q", c.Transport, TransportLean, TransportStd)
	check(c.DialTimeout > 0, "dial_timeout: %v is not positive", c.DialTimeout)
	check(c.ResponseHeaderTimeout >= 0, "response_header_timeout: %v is negative", c.ResponseHeaderTimeout)
	check(c.StallTimeout >= 0, "stall_timeout: %v is negative", c.StallTimeout)
	check(c.IdleTimeout > 0, "idle_timeout: %v is not positive", c.IdleTimeout)
	check(c.MaxIdlePerReplica >= 0, "max_idle_per_replica: %d is negative", c.MaxIdlePerReplica)
	check(c.MaxHeaderBytes >= 4<<10, "max_header_bytes: %d is below 4096", c.MaxHeaderBytes)
	check(c.Retry.Attempts >= 1, "retry.attempts: %d is below 1", c.Retry.Attempts)
	check(c.Retry.Ratio >= 0 && c.Retry.Ratio <= 1, "retry.ratio: %v is not between 0 and 1", c.Retry.Ratio)
	check(c.Retry.MinPerSecond >= 0, "retry.min_per_second: %v is negative", c.Retry.MinPerSecond)
	check(c.Breaker.Failures >= 0, "breaker.failures: %d is negative", c.Breaker.Failures)
	check(c.Breaker.Rate >= 0 && c.Breaker.Rate <= 1, "breaker.rate: %v is not between 0 and 1", c.Breaker.Rate)
	check(c.Breaker.MinRequests >= 1, "breaker.min_requests: %d is below 1", c.Breaker.MinRequests)
	check(c.Breaker.Window > 0, "breaker.window: %v is not positive", c.Breaker.Window)
	check(c.Breaker.OpenFor > 0, "breaker.open_for: %v is not positive", c.Breaker.OpenFor)
	check(c.Breaker.MaxOpenFor >= c.Breaker.OpenFor, "breaker.max_open_for: %v is below open_for", c.Breaker.MaxOpenFor)
	check(c.Breaker.Trials >= 1, "breaker.trials: %d is below 1", c.Breaker.Trials)
	check(c.Pins.Max >= 1, "pins.max: %d is below 1", c.Pins.Max)
	check(c.Pins.TTL > 0, "pins.ttl: %v is not positive", c.Pins.TTL)
	return errors.Join(errs...)
}
