package decide

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	spans "github.com/kvpilot/kvpilot/server/observe/span"
)

// work is a decider's span of a question. The zero value belongs to a trace that is not sampled, and costs nothing.
type work struct{ span trace.Span }

// trace begins the span of a question, in the trace of the request at the router that asks.
func (d *Decider) trace(ask *peerv1.Ask, from ID) work {
	if !ask.GetSampled() {
		return work{}
	}
	traceID, err := trace.TraceIDFromHex(ask.GetTraceId())
	if err != nil {
		return work{}
	}
	spanID, err := trace.SpanIDFromHex(ask.GetSpanId())
	if err != nil {
		return work{}
	}
	above := trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true})
	_, s := spans.Start(trace.ContextWithRemoteSpanContext(context.Background(), above), d.tracer, spans.Decide, trace.SpanKindServer)
	spans.Set(s, spans.DecisionID.String(ask.GetId()), spans.AskedBy.String(from))
	return work{s}
}

// done ends the span with the outcome.
func (w work) done(choice *chooser.Choice, err error) {
	if w.span == nil {
		return
	}
	if err != nil {
		spans.Fail(w.span, "refused", "no choice")
	} else if choice != nil {
		d := choice.Decision
		spans.Set(w.span, spans.Policy.String(string(d.Policy)), spans.Reason.String(string(d.Reason)), spans.Margin.Float64(d.Margin), spans.HeldFor.Float64(d.Held.Seconds()))
		if pick := d.Pick(); pick != nil {
			spans.Set(w.span, spans.Replica.String(string(pick.Replica)), spans.Rank.Int(int(pick.Rank)), spans.PredictedTTFT.Float64(pick.TTFT))
		}
	}
	w.span.End()
}

// dropped ends the span of a question that is not wanted any more.
func (w work) dropped() {
	if w.span == nil {
		return
	}
	spans.Set(w.span, spans.FinishedBy.String("dropped"))
	w.span.End()
}
