package enginestats

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
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

// Learned is what a replica's metrics report about the engine. Zero fields are not known.
type Learned struct {
	// BlockSize is in tokens.
	BlockSize int
	// Blocks is the number of KV blocks per rank.
	Blocks int
}

// Params is what the code passes in. Its zero value is valid.
type Params struct {
	Log   *slog.Logger
	Meter metric.MeterProvider
	// Client makes the requests; nil makes one that suits vLLM.
	Client *http.Client
	// Load counts this router's requests; nil: it has none.
	Load Load
	// Listener follows the engines; nil: there is none.
	Listener Listener
}

// Load counts the requests that this router has booked on a rank; Stats.Foreign needs it.
type Load interface {
	InFlight(slot replica.Slot) int
}

// Listener follows the engines by their reports.
type Listener interface {
	// EngineAnswered is called for each report that a replica gave.
	EngineAnswered(id replica.ID)
	// EngineLearned is called when a replica's cache configuration is seen or changes.
	EngineLearned(id replica.ID, l Learned)
	// EngineStarted is called with the moment at which a replica's engine process began, by this machine's clock:
	// when it is first seen, and whenever it is another process.
	EngineStarted(id replica.ID, began time.Time)
	// EngineRestarted is called when an engine that does not report its start time turns out to be a new process,
	// because its counters fell.
	EngineRestarted(id replica.ID, noticed time.Time)
}

// alone is the Load and the Listener of a poller without one.
type alone struct{}

func (alone) InFlight(replica.Slot) int             { return 0 }
func (alone) EngineAnswered(replica.ID)             {}
func (alone) EngineLearned(replica.ID, Learned)     {}
func (alone) EngineStarted(replica.ID, time.Time)   {}
func (alone) EngineRestarted(replica.ID, time.Time) {}

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
