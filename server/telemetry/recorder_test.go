package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/span"
	"github.com/kvpilot/kvpilot/server/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is an exporter that keeps the names of what it gets.
type box struct {
	mu    sync.Mutex
	names []string
	err   error
}

func (b *box) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range spans {
		b.names = append(b.names, s.Name())
	}
	return b.err
}

func (b *box) Shutdown(context.Context) error { return nil }

func start(t *testing.T, traces telemetry.Traces, b *box) *telemetry.Telemetry {
	t.Helper()
	c := telemetry.DefaultConfig()
	c.Traces = traces
	tel, err := telemetry.New(context.Background(), c, telemetry.Params{Exporters: []sdktrace.SpanExporter{b}})
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// request is a trace of a server span with one child.
func request(tel *telemetry.Telemetry, took time.Duration, end func(trace.Span)) {
	tracer := tel.Tracers().Tracer("test")
	ctx, root := tracer.Start(context.Background(), "root")
	_, child := tracer.Start(ctx, "child")
	time.Sleep(took)
	end(child)
	child.End()
	root.End()
}

// never is a ratio that chooses none of a few traces.
const never = 1e-12

func TestErrorsAndSlowRequestsAreKeptWhoeverChose(t *testing.T) {
	good := func(trace.Span) {}
	bad := func(s trace.Span) { s.SetStatus(codes.Error, "broken") }
	cases := map[string]struct {
		ratio float64
		took  time.Duration
		end   func(trace.Span)
		want  int
	}{
		"good and fast": {never, time.Millisecond, good, 0},
		"failed":        {never, time.Millisecond, bad, 2},
		"slow":          {never, 3 * time.Second, good, 2},
		"chosen":        {1, time.Millisecond, good, 2},
		"turned off":    {0, 3 * time.Second, bad, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &box{}
				tel := start(t, telemetry.Traces{Protocol: "grpc", Ratio: c.ratio, Slow: 2 * time.Second}, b)
				request(tel, c.took, c.end)
				if err := tel.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				if len(b.names) != c.want {
					t.Errorf("exported %v, want %d spans", b.names, c.want)
				}
			})
		})
	}
}

func TestAnExporterThatFailsHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{err: errors.New("no collector")}
		tel := start(t, telemetry.Traces{Protocol: "grpc", Ratio: 1}, b)
		for range 100 {
			request(tel, 0, func(trace.Span) {})
		}
		if err := tel.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
}

// BenchmarkRequestSpans records what a proxied request records: a server span, seven steps, an
// attempt and its three parts, with their attributes.
func BenchmarkRequestSpans(b *testing.B) {
	steps := map[string]int{"admit": 0, "read": 3, "tokenize": 3, "score": 3, "choose": 9, "release": 1}
	attrs := make([]attribute.KeyValue, 20)
	for i := range attrs {
		attrs[i] = attribute.String(fmt.Sprintf("kvpilot.attribute.%d", i), "a usual value")
		if i%3 == 0 {
			attrs[i] = attribute.Int(string(attrs[i].Key), i)
		}
	}
	for name, ratio := range map[string]float64{"off": 0, "1%": .01, "100%": 1} {
		b.Run(name, func(b *testing.B) {
			c := telemetry.DefaultConfig()
			c.Traces = telemetry.Traces{Protocol: "grpc", Ratio: ratio, Slow: time.Minute}
			tel, err := telemetry.New(context.Background(), c, telemetry.Params{Exporters: []sdktrace.SpanExporter{&box{}}})
			if err != nil {
				b.Fatal(err)
			}
			tracer := tel.Tracers().Tracer("bench")
			step := func(ctx context.Context, name string, n int) context.Context {
				ctx, s := span.Start(ctx, tracer, name)
				defer s.End()
				if s.IsRecording() {
					s.SetAttributes(attrs[:n]...)
				}
				return ctx
			}
			b.ReportAllocs()
			for b.Loop() {
				ctx, root := tracer.Start(context.Background(), "root", trace.WithSpanKind(trace.SpanKindServer))
				for name, n := range steps {
					step(ctx, name, n)
				}
				inner := step(ctx, "proxy", 14)
				for _, name := range []string{"dial", "first_byte", "stream"} {
					step(inner, name, 1)
				}
				if root.IsRecording() {
					root.SetAttributes(attrs[:18]...)
					root.SetAttributes(attrs[12:20]...)
				}
				root.End()
			}
			if err := tel.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
