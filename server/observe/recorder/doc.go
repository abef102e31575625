// Package recorder makes kvpilot's traces from OpenTelemetry's own spans, and decides at the end of each
// which of them are kept.
//
// A Recorder is a trace.TracerProvider over the SDK's. Besides the API's spans it takes stories: the notes of a part of kvpilot about its
// work on a request, from which spans are drawn later, for many requests one after another and only for traces that are kept. A trace is decided
// about when its first span in this process ends: it is kept when the sampler chose it, when it failed, and when it was slow.
// docs/adr/021-spans-of-the-sdk.md says why.
//
// Package span has the functions by which the rest of kvpilot uses it. All is safe for concurrent use,
// but for a Trace, which belongs to one goroutine. Open traces and the spans of one are bounded; further ones are dropped and counted.
package recorder
