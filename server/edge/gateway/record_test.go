package gateway_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

func TestEachRequestLeavesASpanAndACount(t *testing.T) {
	var ended []sdktrace.ReadOnlySpan
	var mu sync.Mutex
	counts := metric.NewManualReader()
	url := start(t, &services{chat: func(e *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
		if len(in.GetData()) == 0 {
			return apierror.New(apierror.UpstreamUnreachable, "unreachable", nil)
		}
		return echo(e, in, out)
	}}, func(_ *gateway.Config, p *gateway.Params) {
		spans := recorder.New(recorder.Params{Sampler: sdktrace.AlwaysSample(), To: recorder.KeepFunc(func(tr *recorder.Trace) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, tr.Spans()...)
		})})
		p.Scope = scope.New(nil, metric.NewMeterProvider(metric.WithReader(counts)), spans)
	})
	const trace = "0af7651916cd43dd8448eb211c80319c"
	call(t, "POST", url+"/v1/chat/completions?key=secret", "{}", "Traceparent", "00-"+trace+"-b7ad6b7169203331-01", "X-Request-Id", "id-1")
	call(t, "POST", url+"/v1/chat/completions", "")
	call(t, "GET", url+"/v1/models/a%2Fb", "")
	call(t, "BREW", url+"/nowhere", "")
	want := []struct {
		name, route string
		status      int64
	}{
		{"POST /v1/chat/completions", "/v1/chat/completions", 200},
		{"POST /v1/chat/completions", "/v1/chat/completions", 502},
		{"GET /v1/models/{model=**}", "/v1/models/{model=**}", 200},
		{"HTTP", "", 404},
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		mu.Lock()
		n := len(ended)
		mu.Unlock()
		if n == len(want) { // a client may have its answer before the span ends
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ended) != len(want) {
		t.Fatalf("%d spans, want %d", len(ended), len(want))
	}
	for i, s := range ended {
		attrs := map[string]attribute.Value{}
		for _, a := range s.Attributes() {
			attrs[string(a.Key)] = a.Value
			if strings.Contains(a.Value.String(), "secret") {
				t.Errorf("span %d shows the query: %s", i, a.Key)
			}
		}
		route, status := attrs["http.route"].AsString(), attrs["http.response.status_code"].AsInt64()
		if s.Name() != want[i].name || route != want[i].route || status != want[i].status {
			t.Errorf("span %d: %q, route %q, status %d", i, s.Name(), route, status)
		}
		if failed := s.Status().Code == codes.Error; failed != (want[i].status == 502) {
			t.Errorf("span %d: failed %t", i, failed)
		}
	}
	if got, parent := ended[0].SpanContext().TraceID().String(), ended[0].Parent().SpanID().String(); got != trace || parent != "b7ad6b7169203331" {
		t.Errorf("trace %s, parent %s: the client's context is lost", got, parent)
	}
	var all metricdata.ResourceMetrics
	if err := counts.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, scope := range all.ScopeMetrics { // several, in any order
		for _, m := range scope.Metrics {
			seen[m.Name] = true
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "http.server.request.duration" && len(h.DataPoints) != 4 {
				t.Errorf("%d label sets, want 4", len(h.DataPoints))
			}
		}
	}
	for _, name := range []string{"http.server.request.duration", "http.server.active_requests", "kvpilot.gateway.broken_streams"} {
		if !seen[name] {
			t.Errorf("no metric %s", name)
		}
	}
}

// TestIdleStreamsAreSmall bounds what the surface adds to an open stream beyond what any handler
// of net/http costs (its buffers and goroutines, 25 KiB).
func TestIdleStreamsAreSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes stacks larger")
	}
	for range 5000 { // other tests' connections may still be closing
		if runtime.NumGoroutine() < 50 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	const limit = 4 << 10
	open, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		if _, err := io.WriteString(w, "data: 1\n\n"); err != nil {
			t.Error(err)
		}
		w.(http.Flusher).Flush()
		open <- struct{}{}
		<-done
	}))
	t.Cleanup(plain.Close)
	url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
		if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
			return err
		}
		if err := out.Send(&httpbody.HttpBody{Data: []byte("data: 1\n\n")}); err != nil {
			return err
		}
		open <- struct{}{}
		<-done
		return nil
	}})
	base, ours := perStream(t, plain.URL, open), perStream(t, url, open)
	t.Logf("%d bytes per idle stream, %d with a plain handler", ours, base)
	if ours-base > limit {
		t.Errorf("the surface adds %d bytes per idle stream, the limit is %d", ours-base, limit)
	}
}

// perStream opens streams that stay open and tells the memory that one of them takes.
func perStream(t *testing.T, url string, open <-chan struct{}) int {
	t.Helper()
	const streams = 800
	memory := func() int {
		runtime.GC()
		runtime.GC() // what the first one found only to be pooled
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	before := memory()
	for range streams {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
		<-open
	}
	return (memory() - before) / streams
}
