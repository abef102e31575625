// Package recorder makes the spans of kvpilot's traces.
//
// A Recorder is a trace.TracerProvider. All spans of a trace share one lock and one piece of memory,
// and a span is written in OTLP's own form when it ends: what a collector is sent later are those
// bytes, copied, and nothing of a request is held on to by its trace. What becomes of a trace is
// decided when its first span in this process ends: it is kept when the sampler chose it, when it
// failed, and when it was slow.
//
// Tracer.Begin, Span.Set and Span.Draw do what the API's Start and SetAttributes do without its
// options, which are garbage; package span calls them where a tracer is one of these. All is safe
// for concurrent use. Open traces and the spans of one are bounded; what is too much is dropped and
// counted.
package recorder
