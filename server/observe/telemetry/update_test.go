package telemetry_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

func TestLevelAndSamplingChangeAtOnce(t *testing.T) {
	var log bytes.Buffer
	c := telemetry.DefaultConfig()
	c.Traces.Ratio, c.Traces.Slow = 1, 0
	tel, err := telemetry.New(context.Background(), c, telemetry.Params{LogTo: &log, Exporters: []sdktrace.SpanExporter{otlptrace.NewUnstarted(&box{})}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tel.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	part := tel.Log().With("part", "x") // made before the change, as those of all parts are
	sampled := func(ctx context.Context) bool {
		_, s := tel.Tracers().Tracer("test").Start(ctx, "a")
		defer s.End()
		return s.SpanContext().IsSampled()
	}
	forced := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
	part.Debug("before")
	if !sampled(context.Background()) || !sampled(forced) {
		t.Error("with a ratio of 1 a trace is not kept")
	}
	next := c
	next.LogLevel, next.Traces.Ratio, next.Traces.TrustParent = "debug", 0, false
	if err := tel.Update(next); err != nil {
		t.Fatal(err)
	}
	part.Debug("after")
	if sampled(context.Background()) || sampled(forced) {
		t.Error("with a ratio of 0, and without trust in callers, a trace is kept")
	}
	next.LogLevel = "loud"
	if err := tel.Update(next); err == nil {
		t.Error("a wrong level was taken")
	}
	part.Debug("still")
	if text := log.String(); strings.Contains(text, "before") || !strings.Contains(text, "after") || !strings.Contains(text, "still") {
		t.Errorf("the log is\n%s", text)
	}
}
