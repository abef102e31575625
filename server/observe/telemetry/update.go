package telemetry

import (
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Update puts another log level in force, and other rules for which traces are kept, for traces that begin from now on.
// The other fields of next have no effect; with a ratio of zero at the beginning nothing is recorded, and that stays too.
func (t *Telemetry) Update(next Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	t.setLevel(next)
	if t.sampling != nil {
		t.sampling.set(next.Traces)
		t.slow.Store(int64(next.Traces.Slow))
	}
	return nil
}

func (t *Telemetry) setLevel(c Config) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Validate refuses anything else
	}
	t.level.Set(level)
}

// sampling is a sampler that can be changed.
type sampling struct {
	now atomic.Pointer[sdktrace.Sampler]
}

func newSampling(c Traces) *sampling {
	s := &sampling{}
	s.set(c)
	return s
}

func (s *sampling) set(c Traces) {
	next := sampler(c)
	s.now.Store(&next)
}

// ShouldSample implements sdktrace.Sampler.
func (s *sampling) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return (*s.now.Load()).ShouldSample(p)
}

// Description implements sdktrace.Sampler.
func (s *sampling) Description() string { return (*s.now.Load()).Description() }
