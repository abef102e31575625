// Package telemetry makes the logger, the meter and the tracer that the other parts are
// handed, from one Config.
//
// New opens nothing but the exporters; Close flushes them within the caller's deadline. Spans
// are sampled by ratio when the caller did not decide, and traces that failed or were slow are
// kept all the same: the decision falls when a trace's first span ends (package recorder). Nothing here ever
// blocks a request; spans that cannot be kept are dropped and counted. Only packages server and config
// import this package: all others take a *slog.Logger, a metric.MeterProvider or a
// trace.TracerProvider.
package telemetry
