package telemetry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

// display is a function as a Display.
type display func([]sdktrace.ReadOnlySpan)

func (f display) Add(spans []sdktrace.ReadOnlySpan) { f(spans) }

func TestTracesThatAreOnlyShownAreFewOnABusyRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := 0
		c := telemetry.DefaultConfig()
		c.Traces.Ratio = never
		tel, err := telemetry.New(context.Background(), c, telemetry.Params{Display: display(func(spans []sdktrace.ReadOnlySpan) {
			if shown++; len(spans) != 2 {
				t.Errorf("a trace of %d spans is shown, want both", len(spans))
			}
		})})
		if err != nil {
			t.Fatal(err)
		}
		for range 5000 { // five seconds, a thousand each
			request(tel, time.Millisecond, func(trace.Span) {})
		}
		if shown < 100 || shown > 125 {
			t.Errorf("%d traces of a busy router are shown, want 20 a second and those saved before", shown)
		}
		shown = 0
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			request(tel, time.Millisecond, func(trace.Span) {})
		}
		if shown != 10 {
			t.Errorf("%d of 10 traces of a quiet router are shown", shown)
		}
		caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
		for range 100 {
			_, s := tel.Tracers().Tracer("test").Start(trace.ContextWithRemoteSpanContext(context.Background(), caller), "chosen")
			if !s.IsRecording() || !s.SpanContext().IsSampled() {
				t.Fatal("a trace that the caller chose is not recorded")
			}
			s.SetName("not shown: it has no end")
		}
		if err := tel.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
