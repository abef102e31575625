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
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is a client that keeps the names of what it gets.
type box struct {
	mu    sync.Mutex
	names []string
	calls int
	err   error
}

func (b *box) Start(context.Context) error { return nil }
func (b *box) Stop(context.Context) error  { return nil }

func (b *box) UploadTraces(_ context.Context, list []*tracepb.ResourceSpans) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	for _, rs := range list {
		text, err := proto.Marshal(rs)
		if err != nil {
			return err
		}
		var read tracepb.ResourceSpans
		if err := proto.Unmarshal(text, &read); err != nil {
			return err
		}
		for _, scope := range read.ScopeSpans {
			for _, s := range scope.Spans {
				b.names = append(b.names, s.Name)
			}
		}
	}
	return b.err
}

// got is the number of spans and of calls so far.
func (b *box) got() (spans, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.names), b.calls
}

func start(t *testing.T, traces telemetry.Traces, b *box) *telemetry.Telemetry {
	t.Helper()
	c := telemetry.DefaultConfig()
	c.Traces = traces
	tel, err := telemetry.New(context.Background(), c, telemetry.Params{Exporters: []sdktrace.SpanExporter{otlptrace.NewUnstarted(b)}})
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

func TestOneCallTakesManyTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{}
		tel := start(t, telemetry.Traces{Protocol: "grpc", Ratio: 1}, b)
		for range 1000 {
			request(tel, 0, func(trace.Span) {})
		}
		synctest.Wait()
		before, _ := b.got()
		time.Sleep(3 * time.Second)
		if after, calls := b.got(); before != 0 || after != 2000 || calls > 2 {
			t.Errorf("%d spans at once, %d in the end in %d calls; want all 2000 in one or two, after a while", before, after, calls)
		}
		for range 4000 {
			request(tel, 0, func(trace.Span) {})
		}
		synctest.Wait()
		if n, _ := b.got(); n < 4000 {
			t.Errorf("%d spans were sent: a full batch waits for nothing", n)
		}
		if err := tel.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n, _ := b.got(); n != 10000 {
			t.Errorf("%d spans were sent until the end, want all 10000", n)
		}
	})
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

// nowhere takes spans and looks at none.
type nowhere struct{}

func (nowhere) Start(context.Context) error { return nil }
func (nowhere) Stop(context.Context) error  { return nil }

func (nowhere) UploadTraces(context.Context, []*tracepb.ResourceSpans) error { return nil }

// BenchmarkRequestSpans records what a proxied request records, in the way the router does: a server
// span on which a story of nine steps is left, with as many attributes.
func BenchmarkRequestSpans(b *testing.B) {
	attrs := make([]attribute.KeyValue, 24)
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
			tel, err := telemetry.New(context.Background(), c, telemetry.Params{Exporters: []sdktrace.SpanExporter{otlptrace.NewUnstarted(nowhere{})}})
			if err != nil {
				b.Fatal(err)
			}
			tracer := tel.Tracers().Tracer("bench")
			b.ReportAllocs()
			for b.Loop() {
				_, root := span.Start(context.Background(), tracer, "root", trace.SpanKindServer)
				span.Leave(root, &steps{tracer: tracer, attrs: attrs, at: time.Now()}, false)
				root.End()
			}
			if err := tel.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// steps is a story with as many spans and attributes as a request's.
type steps struct {
	tracer trace.Tracer
	attrs  []attribute.KeyValue
	at     time.Time
}

func (st *steps) Free() {}

func (st *steps) Draw(on *span.Canvas) {
	tracer := st.tracer.(*recorder.Tracer)
	for i, n := range []int{0, 3, 3, 3, 9, 15, 0, 0, 1, 1} {
		on.Draw(tracer, span.Part{Name: "kvpilot.step", From: st.at, To: st.at.Add(time.Duration(i))}, st.attrs[:n]...)
	}
	on.Set(st.attrs...)
}
