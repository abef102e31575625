// Package recorder makes the spans of kvpilot's traces.
//
// A Recorder is a trace.TracerProvider. Besides the API's spans, which are written in OTLP's own form
// when they end, it takes stories: what a part of kvpilot noted of its work on a request, from which the
// spans are drawn later, for many requests in a row and only for traces that are kept. What becomes of
// a trace is decided when its first span in this process ends: it is kept when the sampler chose it,
// when it failed, and when it was slow. docs/adr/012-span-recorder.md says why.
//
// Package span has the functions by which the rest of kvpilot uses it. All is safe for concurrent use,
// but for a Trace and a Batch, which belong to one goroutine. Open traces and the spans of one are
// bounded; what is too much is dropped and counted.
package recorder
