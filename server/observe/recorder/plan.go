package recorder

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// plan is the context in which the SDK begins a span: it carries the ids that the span gets, which may have
// been announced to a replica long before, and the decision about its trace.
type plan struct {
	context.Context //nolint:containedctx // it is a context itself
	trace           trace.TraceID
	span            trace.SpanID
	result          sdktrace.SamplingResult
}

type planKey struct{}

// Value implements context.Context.
func (p *plan) Value(key any) any {
	if key == (planKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// planned is the SDK's generator of ids and its sampler: both look the plan up.
type planned struct{}

// NewIDs implements sdktrace.IDGenerator.
func (planned) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if p, ok := ctx.Value(planKey{}).(*plan); ok {
		return p.trace, p.span
	}
	return newTraceID(), NewSpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (planned) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if p, ok := ctx.Value(planKey{}).(*plan); ok {
		return p.span
	}
	return NewSpanID()
}

// ShouldSample implements sdktrace.Sampler.
func (planned) ShouldSample(s sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p, ok := s.ParentContext.Value(planKey{}).(*plan); ok {
		return p.result
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

// Description implements sdktrace.Sampler.
func (planned) Description() string { return "planned" }

func newTraceID() (id trace.TraceID) {
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64()|1) // never all zeros
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

// NewSpanID makes the id of a span that is drawn later.
func NewSpanID() (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
