package grpcapi

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The replica's spans stand below the choice if that is a span of this trace, and below the call otherwise.
func TestAChoiceHandsTheTraceOn(t *testing.T) {
	const id, choice, call = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
	traceID, err := trace.TraceIDFromHex(id)
	if err != nil {
		t.Fatal(err)
	}
	spanID, err := trace.SpanIDFromHex(call)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		flags    trace.TraceFlags
		untraced bool
		decision decision.Decision
		want     string
	}{
		"below the choice":           {flags: trace.FlagsSampled, decision: decision.Decision{Request: decision.Request{TraceID: id, SpanID: choice}}, want: "00-" + id + "-" + choice + "-01"},
		"the choice is not recorded": {want: "00-" + id + "-" + call + "-00"},
		"the choice of another call": {flags: trace.FlagsSampled, decision: decision.Decision{Request: decision.Request{TraceID: "1" + id[1:], SpanID: choice}}, want: "00-" + id + "-" + call + "-01"},
		"no trace":                   {untraced: true, decision: decision.Decision{Request: decision.Request{TraceID: id, SpanID: choice}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			if !tc.untraced {
				ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: tc.flags}))
			}
			headers := map[string]string{}
			handTrace(ctx, &tc.decision, headers)
			if headers["traceparent"] != tc.want {
				t.Errorf("traceparent is %q, want %q", headers["traceparent"], tc.want)
			}
		})
	}
}
