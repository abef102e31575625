package decide_test

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// The decider's work is a span in the trace of the router that asks, below its choice; a trace that is not sampled has none.
func TestADecidersWorkIsInTheTraceOfTheRequest(t *testing.T) {
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for name, tc := range map[string]struct {
		sampled bool
		trace   string
		want    int
	}{
		"sampled":         {true, traceID, 1},
		"not sampled":     {false, traceID, 0},
		"no id of a span": {true, "x", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got []sdktrace.ReadOnlySpan
			recorded := recorder.New(recorder.Params{
				Sampler: sdktrace.ParentBased(sdktrace.NeverSample()), To: recorder.KeepFunc(func(tr *recorder.Trace) { got = append(got, tr.Spans()...) }),
			})
			w := newTracedWorld(t, recorded)
			asker := w.routers[0]
			if asker.frontend.Decider("m") == asker.id {
				asker = w.routers[1]
			}
			asked := false
			asker.frontend.Submit(&chooser.Request{
				Request: decision.Request{ID: "a", Model: "m", TraceID: tc.trace, SpanID: spanID}, Pool: chooser.Pool{Replicas: asker.replicas}, Prompt: chooser.Prompt{PromptTokens: 32},
				Sampled: tc.sampled,
			}, time.Time{}, func(c *chooser.Choice, err error) {
				if err != nil || c.Decision.DecidedBy == "" {
					t.Errorf("decided %+v, %v; want by the peer", c, err)
					return
				}
				asked = true
				c.Release(result(0))
			})
			w.run(20 * time.Millisecond)
			if !asked || len(got) != tc.want {
				t.Fatalf("asked: %t, %d spans, want %d", asked, len(got), tc.want)
			}
			for _, s := range got {
				if s.Name() != span.Decide || s.SpanContext().TraceID().String() != traceID || s.Parent().SpanID().String() != spanID || s.EndTime().IsZero() {
					t.Errorf("the span is %s in %s below %s", s.Name(), s.SpanContext().TraceID(), s.Parent().SpanID())
				}
			}
		})
	}
}
