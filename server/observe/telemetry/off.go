package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// off records nothing and costs nothing. A caller's trace stays in the context, so that it continues
// to the replica as it came.
type off struct{ embedded.TracerProvider }

// Tracer implements trace.TracerProvider.
func (off) Tracer(string, ...trace.TracerOption) trace.Tracer { return offTracer{} }

// unrecorded is a span that is not recorded, made once.
var unrecorded trace.Span = noop.Span{}

type offTracer struct{ embedded.Tracer }

// BeginAt is Start without options, which are garbage.
func (offTracer) BeginAt(ctx context.Context, _ string, _ trace.SpanKind, _ trace.SpanID, _ time.Time) (context.Context, trace.Span) {
	return ctx, unrecorded
}

// Start implements trace.Tracer.
func (offTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, unrecorded
}
