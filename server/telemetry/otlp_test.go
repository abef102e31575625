package telemetry

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/secret"
)

// collector keeps the last request that came.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu     sync.Mutex
	last   *collectorpb.ExportTraceServiceRequest
	token  []string
	answer *collectorpb.ExportTraceServiceResponse
}

func (c *collector) Export(ctx context.Context, in *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = in
	md, _ := metadata.FromIncomingContext(ctx)
	c.token = md.Get("authorization")
	return c.answer, nil
}

func startCollector(t *testing.T) (*collector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, s := &collector{answer: &collectorpb.ExportTraceServiceResponse{}}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, c)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return c, l.Addr().String()
}

// someSpans are spans with all that a span can have.
func someSpans(t *testing.T) []sdktrace.ReadOnlySpan {
	t.Helper()
	var keep tracetest.InMemoryExporter
	p := sdktrace.NewTracerProvider(sdktrace.WithSyncer(&keep), sdktrace.WithResource(resource.NewWithAttributes("https://example.org/schema", attribute.String("service.name", "x"), attribute.Int("n", 7))),
		sdktrace.WithRawSpanLimits(sdktrace.SpanLimits{AttributeValueLengthLimit: -1, AttributeCountLimit: 8, EventCountLimit: 2, LinkCountLimit: 2, AttributePerEventCountLimit: 1, AttributePerLinkCountLimit: 1}))
	state, err := trace.ParseTraceState("vendor=value")
	if err != nil {
		t.Fatal(err)
	}
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true})
	one := p.Tracer("one", trace.WithInstrumentationVersion("1.2"), trace.WithSchemaURL("https://example.org/one"), trace.WithInstrumentationAttributes(attribute.Bool("b", true)))
	two := p.Tracer("two")
	ctx, root := one.Start(trace.ContextWithRemoteSpanContext(context.Background(), remote), "root", trace.WithSpanKind(trace.SpanKindServer))
	kinds := []trace.SpanKind{trace.SpanKindInternal, trace.SpanKindClient, trace.SpanKindProducer, trace.SpanKindConsumer}
	for i, kind := range kinds {
		_, s := two.Start(ctx, "child", trace.WithSpanKind(kind), trace.WithTimestamp(time.Unix(int64(i), 0)))
		s.SetAttributes(attribute.String("text", strings.Repeat("long ", 100*i)), attribute.String("empty", ""), attribute.Int("minus", -5), attribute.Float64("half", .5),
			attribute.Bool("yes", true), attribute.Bool("no", false), attribute.StringSlice("list", []string{"a", "", "c"}), attribute.Int("zero", 0), attribute.String("one", "too many"))
		for range i {
			s.AddEvent("event", trace.WithTimestamp(time.Unix(5, 5)), trace.WithAttributes(attribute.String("k", "v"), attribute.String("dropped", "")))
			s.AddLink(trace.Link{SpanContext: remote, Attributes: []attribute.KeyValue{attribute.Int("k", 1), attribute.Int("l", 2)}})
		}
		switch i {
		case 1:
			s.SetStatus(codes.Error, "broken")
		case 2:
			s.SetStatus(codes.Ok, "")
		}
		s.End()
	}
	root.End()
	return keep.GetSpans().Snapshots()
}

func TestSpansAreWrittenAsOpenTelemetrysExporterDoes(t *testing.T) {
	c, address := startCollector(t)
	spans := someSpans(t)
	theirs, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := newOTLPGRPC(Traces{Endpoint: address, Insecure: true, Token: secret.New("token")})
	if err != nil {
		t.Fatal(err)
	}
	var got [2]*collectorpb.ExportTraceServiceRequest
	for i, e := range []sdktrace.SpanExporter{theirs, ours} {
		if err := e.ExportSpans(t.Context(), spans); err != nil {
			t.Fatal(err)
		}
		got[i] = c.last
		if err := e.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.token) != 1 || c.token[0] != "Bearer token" {
		t.Errorf("the token came as %q", c.token)
	}
	if n := len(got[0].GetResourceSpans()); n != 1 {
		t.Fatalf("%d resources", n)
	}
	if !proto.Equal(got[0], got[1]) {
		t.Errorf("ours:\n%s\ntheirs:\n%s", prototext.Format(got[1]), prototext.Format(got[0]))
	}
}

func TestWhatACollectorRefusesIsAnError(t *testing.T) {
	c, address := startCollector(t)
	e, err := newOTLPGRPC(Traces{Endpoint: address, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown(t.Context())
	c.answer = &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 3, ErrorMessage: "too old"}}
	if err := e.ExportSpans(t.Context(), someSpans(t)); err == nil || !strings.Contains(err.Error(), "refused 3 spans: too old") {
		t.Errorf("error %v", err)
	}
	c.answer = &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{ErrorMessage: "only a warning"}}
	if err := e.ExportSpans(t.Context(), someSpans(t)); err != nil {
		t.Errorf("a warning: %v", err)
	}
}

func TestAnswersThatAreNoMessagesDoNoHarm(t *testing.T) {
	for _, text := range []string{"", "\x0a", "\x0a\xff", "\xff\xff\xff", "\x0a\x02\x08", "\x08\x01", "\x0d\x01\x02\x03\x04"} {
		if err := refused([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func BenchmarkExport(b *testing.B) {
	var keep tracetest.InMemoryExporter
	p := sdktrace.NewTracerProvider(sdktrace.WithSyncer(&keep))
	for range 512 {
		_, s := p.Tracer("t").Start(context.Background(), "kvpilot.proxy")
		for _, k := range []string{"a", "b", "c", "d", "e", "f"} {
			s.SetAttributes(attribute.String("kvpilot.attribute."+k, "some value"))
		}
		s.End()
	}
	spans := keep.GetSpans().Snapshots()
	var buffer []byte
	b.ReportAllocs()
	for b.Loop() {
		buffer = appendRequest(buffer[:0], spans)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(spans)), "ns/span")
}
