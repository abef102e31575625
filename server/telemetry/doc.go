// Package telemetry makes the logger, the meter and the tracer that the other parts are
// handed, from one Config.
//
// New opens nothing but the exporters; Close flushes them within the caller's deadline. Spans
// are sampled by ratio when the caller did not decide. Only packages server and config import
// this package: everybody else takes a *slog.Logger, a metric.MeterProvider or a
// trace.TracerProvider.
package telemetry
