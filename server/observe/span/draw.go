package span

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// The functions below draw on the spans of kvpilot's own recorder; on others, and where nothing is recorded, it
// do nothing and cost nothing. Lists of attributes stay on the stack, and no options are made.

// KeyValue is one attribute.
type KeyValue = attribute.KeyValue

// A Story draws on a Canvas, in Parts with Events, the work for a request.
type (
	Story  = recorder.Story
	Canvas = recorder.Canvas
	Part   = recorder.Part
	Event  = recorder.Event
)

// unrecorded is a span that is not recorded, made once.
var unrecorded trace.Span = noop.Span{}

// Start begins a child of the span in ctx. Below a span that is not recorded it makes none, so
// that a request outside the sample pays nothing for its steps.
func Start(ctx context.Context, t trace.Tracer, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	return StartAt(ctx, t, name, kind, trace.SpanID{}, time.Time{})
}

// StartAt is Start for a span that began in the past, or that is a part of one that is
// going to be drawn with the planned id above; either may be left out.
func StartAt(ctx context.Context, t trace.Tracer, name string, kind trace.SpanKind, above trace.SpanID, at time.Time) (context.Context, trace.Span) {
	if own, ok := t.(interface {
		BeginAt(context.Context, string, trace.SpanKind, trace.SpanID, time.Time) (context.Context, trace.Span)
	}); ok {
		return own.BeginAt(ctx, name, kind, above, at)
	}
	return ctx, unrecorded
}

// Set puts attributes on a span.
func Set(s trace.Span, attrs ...KeyValue) {
	if own, ok := s.(*recorder.Span); ok {
		own.SetAttributes(attrs...)
	}
}

// Leave leaves a story with a span that is recorded, and has it forgotten with any other.
func Leave(s trace.Span, st Story, failed bool) {
	if own, ok := s.(*recorder.Span); ok {
		own.Leave(st, failed)
		return
	}
	st.Free()
}

// Planned makes the id of a child of above that is going to be drawn, for a caller that must name it before.
// It is not valid when the child is not recorded.
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

// FellBack is the event that something was done in a lesser way, and why.
func FellBack(at time.Time, what, reason string) Event {
	return Event{Name: EventFallback, At: at, Attrs: []KeyValue{FallbackOf.String(what), Reason.String(reason)}}
}
