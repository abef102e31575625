package enginestats

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Path is where replicas serve their metrics.
	Path string `yaml:"path"`
	// Interval is the time between reads of a replica, varied by up to a tenth.
	Interval time.Duration `yaml:"interval"`
	// Timeout limits each read.
	Timeout time.Duration `yaml:"timeout"`
	// Stale is the age from which statistics are ignored.
	Stale time.Duration `yaml:"stale"`
	// MaxBytes limits the answer that is read.
	MaxBytes quantity.Bytes `yaml:"max_bytes"`
	// Concurrency limits the concurrent reads.
	Concurrency int `yaml:"concurrency"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Path: "/metrics", Interval: time.Second, Timeout: 2 * time.Second, Stale: 10 * time.Second,
		MaxBytes: 8 << 20, Concurrency: 32,
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" || c.Path[0] != '/' {
		errs = append(errs, fmt.Errorf("path: must start with a slash, not %q", c.Path))
	}
	if c.Interval < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("interval: must be at least 10ms, not %s", c.Interval))
	}
	if c.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("timeout: must be at least 1ms, not %s", c.Timeout))
	}
	if c.Stale < c.Interval {
		errs = append(errs, fmt.Errorf("stale: must be at least interval (%[2]s), not %[1]s", c.Stale, c.Interval))
	}
	if c.MaxBytes < 1 || c.Concurrency < 1 {
		errs = append(errs, errors.New("max_bytes, concurrency: must be at least 1"))
	}
	return errors.Join(errs...)
}

// Learned has the facts about the engine that a replica's metrics report. Zero fields are not known.
type Learned struct {
	// BlockSize is in tokens.
	BlockSize int
	// Blocks is the number of KV blocks per rank.
	Blocks int
}

// Bookings counts the requests that this router has booked on a rank.
type Bookings interface {
	InFlight(slot replica.Slot) int
}

// Observer is informed of the engines' facts in the reports.
type Observer interface {
	// EngineAnswered is called for each report that a replica gave.
	EngineAnswered(id replica.ID)
	// EngineLearned is called when a replica's cache configuration is seen or changes.
	EngineLearned(id replica.ID, l Learned)
	// EngineBegan is called with the moment at which a replica's engine process began, by this machine's clock:
	// when it is first seen, and whenever it is another process.
	EngineBegan(id replica.ID, began time.Time)
	// EngineRestarted is called when an engine that does not report its start time turns out to be a new process,
	// because its counters fell.
	EngineRestarted(id replica.ID, noticed time.Time)
}

// Params has the arguments of the code. Its zero value is valid.
type Params struct {
	Scope scope.Scope
	// Client makes the requests; nil makes one that suits vLLM.
	Client *http.Client
	// Bookings are needed for Stats.Foreign; nil: this router books nothing.
	Bookings Bookings
	// Observer may be nil.
	Observer Observer
}

// newClient suits vLLM, whose keep-alive is 5 s.
func newClient() *http.Client {
	return &http.Client{
		Transport: tlspeer.NewTransports(&http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * time.Second, TLSHandshakeTimeout: 2 * time.Second,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
