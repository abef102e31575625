// Package scope has the value that a part reports with: its log, its clock, its metrics and its spans.
//
// A Scope is copied, and safe for concurrent use. The zero value reports nothing and has the system's clock, so that a part needs no
// defaults of its own.
package scope

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// SchemaURL names the version of OpenTelemetry's conventions that the attributes of spans follow (observe/span).
const SchemaURL = semconv.SchemaURL

// Clock is the time of a part. Its method is safe for concurrent use, and its readings do not go back.
type Clock interface{ Now() time.Time }

// Scope is the log, the clock, the metrics and the spans of a part.
type Scope struct {
	log    *slog.Logger
	clock  Clock
	meters metric.MeterProvider
	spans  trace.TracerProvider
}

// New joins its arguments, with the system's clock; each may be nil.
func New(log *slog.Logger, meters metric.MeterProvider, spans trace.TracerProvider) Scope {
	return Scope{log: log, meters: meters, spans: spans}
}

// Logged is a Scope with a log alone.
func Logged(log *slog.Logger) Scope { return Scope{log: log} }

// Measured is a Scope with metrics alone.
func Measured(meters metric.MeterProvider) Scope { return Scope{meters: meters} }

// Part is the Scope of a part, which the lines of its log name.
func (s Scope) Part(name string) Scope {
	s.log = s.Log().With("part", name)
	return s
}

// At is the Scope with another clock.
func (s Scope) At(clock Clock) Scope {
	s.clock = clock
	return s
}

// Clock is the part's time.
func (s Scope) Clock() Clock {
	if s.clock == nil {
		return system{}
	}
	return s.clock
}

// system is the system's clock.
type system struct{}

func (system) Now() time.Time { return time.Now() }

// Log takes the part's log lines.
func (s Scope) Log() *slog.Logger {
	if s.log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.log
}

// Meters makes the part's instruments.
func (s Scope) Meters() metric.MeterProvider {
	if s.meters == nil {
		return metricnoop.NewMeterProvider()
	}
	return s.meters
}

// Tracer makes the spans of the package at path below the module's root, by OpenTelemetry's conventions.
func (s Scope) Tracer(path string) trace.Tracer {
	if s.spans == nil {
		return noop.Tracer{}
	}
	return s.spans.Tracer("github.com/kvpilot/kvpilot/"+path, trace.WithSchemaURL(SchemaURL))
}
