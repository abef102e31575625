package span

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/recorder"
)

// What follows works with every tracer of OpenTelemetry's API. With kvpilot's own, lists of
// attributes stay on the stack and no options are made.

// KeyValue is one attribute.
type KeyValue = attribute.KeyValue

// Part is a span that is over when it is told of.
type Part = recorder.Part

// unrecorded is a span that nobody records, made once.
var unrecorded trace.Span = noop.Span{}

// Start begins a child of the span in ctx. Below a span that nobody records it makes none, so
// that a request outside the sample pays nothing for its steps.
func Start(ctx context.Context, t trace.Tracer, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	if own, ok := t.(interface {
		Begin(context.Context, string, trace.SpanKind) (context.Context, trace.Span)
	}); ok {
		return own.Begin(ctx, name, kind)
	}
	parent := trace.SpanFromContext(ctx)
	if c := parent.SpanContext(); c.IsValid() && !c.IsRemote() && !parent.IsRecording() {
		return ctx, unrecorded
	}
	return t.Start(ctx, name, trace.WithSpanKind(kind))
}

// Set puts attributes on a span.
func Set(s trace.Span, attrs ...KeyValue) {
	if own, ok := s.(*recorder.Span); ok {
		own.Set(attrs...)
		return
	}
	if s.IsRecording() {
		s.SetAttributes(slices.Clone(attrs)...)
	}
}

// Draw records a step that is over as a child of above, unless nobody records that.
func Draw(above trace.Span, t trace.Tracer, p Part, attrs ...KeyValue) {
	if !above.IsRecording() {
		return
	}
	if own, ok := above.(*recorder.Span); ok {
		if tracer, ok := t.(*recorder.Tracer); ok {
			own.Draw(tracer, p, attrs...)
			return
		}
	}
	_, s := t.Start(trace.ContextWithSpan(context.Background(), above), p.Name, trace.WithTimestamp(p.From), trace.WithAttributes(slices.Clone(attrs)...))
	if p.Failed != "" {
		s.SetStatus(codes.Error, p.Failed)
	}
	if p.Event != "" {
		s.AddEvent(p.Event, trace.WithTimestamp(p.To), trace.WithAttributes(p.EventAttrs...))
	}
	s.End(trace.WithTimestamp(p.To))
}

// Planned makes the id of a child of above that is going to be drawn, for what must name it before.
// It is not valid when nobody records the child, or not with that id.
func Planned(above trace.Span) trace.SpanID {
	if own, ok := above.(*recorder.Span); ok && own.IsRecording() {
		return recorder.NewSpanID()
	}
	return trace.SpanID{}
}

// Note leaves an event on the span in ctx.
func Note(ctx context.Context, event string, attrs ...KeyValue) {
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		s.AddEvent(event, trace.WithAttributes(slices.Clone(attrs)...))
	}
}

// Fallback notes on the span in ctx that something was done in a lesser way, and why.
func Fallback(ctx context.Context, what, reason string) {
	Note(ctx, EventFallback, FallbackOf.String(what), Reason.String(reason))
}
