// Package scope has the value that a part reports with: its log, its metrics and its spans.
//
// A Scope is copied, and safe for concurrent use. The zero value reports nothing, so that a part needs no defaults of its own.
package scope

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Scope is the log, the metrics and the spans of a part.
type Scope struct {
	log    *slog.Logger
	meters metric.MeterProvider
	spans  trace.TracerProvider
}

// New joins its arguments; each may be nil.
func New(log *slog.Logger, meters metric.MeterProvider, spans trace.TracerProvider) Scope {
	return Scope{log, meters, spans}
}

// Part is the Scope of a part, which the lines of its log name.
func (s Scope) Part(name string) Scope {
	s.log = s.Log().With("part", name)
	return s
}

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

// Tracers makes the part's tracer.
func (s Scope) Tracers() trace.TracerProvider {
	if s.spans == nil {
		return noop.NewTracerProvider()
	}
	return s.spans
}
