package grpcapi

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// handTrace gives the caller the headers that put the replica's spans below the choice, in W3C's form. A choice that is not traced
// gives none.
func handTrace(ctx context.Context, d *decision.Decision, to map[string]string) {
	here := trace.SpanContextFromContext(ctx)
	if !here.IsValid() {
		return
	}
	if id, err := trace.SpanIDFromHex(d.SpanID); err == nil && d.TraceID == here.TraceID().String() {
		here = here.WithSpanID(id)
	}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(ctx, here), propagation.MapCarrier(to))
}
