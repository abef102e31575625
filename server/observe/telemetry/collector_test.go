package telemetry

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/secret"
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

// sendOne records one trace of two spans and sends it.
func sendOne(t *testing.T, log io.Writer, c Traces) {
	t.Helper()
	config := DefaultConfig()
	c.Ratio = 1
	config.Traces = c
	tel, err := New(t.Context(), config, Params{LogTo: log, Version: "9", Instance: "me"})
	if err != nil {
		t.Fatal(err)
	}
	tracer := tel.Tracers().Tracer("t")
	ctx, root := tracer.Start(t.Context(), "root")
	_, child := tracer.Start(ctx, "child")
	child.End()
	root.End()
	if err := tel.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// whole checks what a collector got.
func whole(t *testing.T, got *collectorpb.ExportTraceServiceRequest) {
	t.Helper()
	if len(got.GetResourceSpans()) != 1 || len(got.ResourceSpans[0].GetScopeSpans()) != 1 || len(got.ResourceSpans[0].ScopeSpans[0].GetSpans()) != 2 {
		t.Fatalf("the collector got %v", got)
	}
	about := map[string]string{}
	for _, a := range got.ResourceSpans[0].GetResource().GetAttributes() {
		about[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if about["service.name"] != "kvpilot" || about["service.version"] != "9" || about["service.instance.id"] != "me" {
		t.Errorf("the resource is %v", about)
	}
}

func TestSpansGoToACollectorOverGRPC(t *testing.T) {
	c, address := startCollector(t)
	sendOne(t, io.Discard, Traces{Endpoint: address, Protocol: "grpc", Insecure: true, Token: secret.New("token")})
	whole(t, c.last)
	if len(c.token) != 1 || c.token[0] != "Bearer token" {
		t.Errorf("the token came as %q", c.token)
	}
}

func TestSpansGoToACollectorOverHTTP(t *testing.T) {
	got, token := &collectorpb.ExportTraceServiceRequest{}, ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, got)
		}
		if err != nil {
			t.Error(err)
		}
		token = r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer s.Close()
	sendOne(t, io.Discard, Traces{Endpoint: s.URL + "/v1/traces", Protocol: "http", Insecure: true, Token: secret.New("token")})
	whole(t, got)
	if token != "Bearer token" {
		t.Errorf("the token came as %q", token)
	}
}

func TestWhatACollectorRefusesIsLogged(t *testing.T) {
	c, address := startCollector(t)
	c.answer = &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 2, ErrorMessage: "too old"}}
	var log bytes.Buffer
	sendOne(t, &log, Traces{Endpoint: address, Protocol: "grpc", Insecure: true})
	if !strings.Contains(log.String(), "too old") {
		t.Errorf("the log says %q", &log)
	}
}

func TestTurnedOffACallersTraceGoesOn(t *testing.T) {
	tel, err := New(context.Background(), DefaultConfig(), Params{}) // nobody to send to
	if err != nil {
		t.Fatal(err)
	}
	caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	ctx, s := tel.Tracers().Tracer("t").Start(trace.ContextWithRemoteSpanContext(context.Background(), caller), "root")
	if s.IsRecording() || !trace.SpanContextFromContext(ctx).Equal(caller) {
		t.Errorf("recording %v, the context holds %v", s.IsRecording(), trace.SpanContextFromContext(ctx))
	}
	if err := tel.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
