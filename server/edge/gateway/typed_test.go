package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// The handler of a typed route sees the HTTP request behind grpc-gateway's.
func TestTypedRoutesSeeTheRequest(t *testing.T) {
	who := &caller.Caller{Tenant: "team", Name: "ci"}
	var seen *httpcall.Call
	var traceID trace.TraceID
	var deadline bool
	url := start(t, &services{chooseIn: func(ctx context.Context, _ *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		seen, traceID = httpcall.From(ctx), trace.SpanContextFromContext(ctx).TraceID()
		_, deadline = ctx.Deadline()
		return &kvpilotv1.ChooseReplicaResponse{}, nil
	}}, func(_ *gateway.Config, p *gateway.Params) {
		p.Scope = scope.New(nil, nil, recorder.New(recorder.Params{Sampler: sdktrace.AlwaysSample(), To: recorder.KeepFunc((*recorder.Trace).Drop)}))
		p.Senders = senders(func(*http.Request, string, string) (*caller.Caller, error) { return who, nil })
	})
	const id = "0af7651916cd43dd8448eb211c80319c"
	resp, text := call(t, "POST", url+"/kvpilot/v1/choose", "{}", "X-Request-Id", "mine", "X-Custom", "a", "X-Custom", "ü", "Traceparent", "00-"+id+"-b7ad6b7169203331-01")
	if resp.StatusCode != 200 || seen == nil {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if seen.Caller != who || seen.RequestID != "mine" || seen.Client != "127.0.0.1" || strings.Join(seen.Header["X-Custom"], " ") != "a ü" || seen.Path != "/kvpilot/v1/choose" {
		t.Errorf("the handler saw %+v", seen)
	}
	if traceID.String() != id || deadline {
		t.Errorf("trace %s, a deadline: %t", traceID, deadline)
	}
}

// An error of a typed route keeps what a gRPC status has no room for.
func TestTypedErrorsAreWhole(t *testing.T) {
	var refusal error
	url := start(t, &services{choose: func(*kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) { return nil, refusal }})
	large := []byte(`{"message":"` + strings.Repeat("x", 20_000) + `"}`)
	refusal = apierror.Upstream(422, "application/json; x=1", large)
	if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", "{}"); resp.StatusCode != 422 || got != string(large) || resp.Header.Get("Content-Type") != "application/json; x=1" {
		t.Errorf("an engine's answer: %d, %d bytes, %v", resp.StatusCode, len(got), resp.Header)
	}
	refusal = apierror.New(apierror.RateLimitExceeded, "slow down", errors.New("10.0.0.1"), apierror.WithHeader(http.Header{"X-Ratelimit-Limit-Requests": {"7"}}))
	if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", "{}"); resp.StatusCode != 429 || resp.Header.Get("X-Ratelimit-Limit-Requests") != "7" || strings.Contains(got, "10.0.0.1") {
		t.Errorf("a limit: %d %v %s", resp.StatusCode, resp.Header, got)
	}
	refusal = errors.New("dial 10.0.0.1")
	if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", "{}"); resp.StatusCode != 500 || strings.Contains(got, "10.0.0.1") {
		t.Errorf("a private error: %d %s", resp.StatusCode, got)
	}
}

func TestClientGoneCancelsATypedCall(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	url := start(t, &services{chooseIn: func(ctx context.Context, _ *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/kvpilot/v1/choose", strings.NewReader("{}"))
	go func() {
		<-began
		cancel()
	}()
	if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer to a request that was cancelled")
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the handler was not cancelled")
	}
}

// Messages far larger than gRPC's usual bound pass in both directions.
func TestLargeTypedMessages(t *testing.T) {
	url := start(t, &services{choose: func(in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		return &kvpilotv1.ChooseReplicaResponse{Policy: in.GetText()}, nil
	}})
	text := strings.Repeat("0123456789", 1<<20)
	if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", `{"text":"`+text+`"}`); resp.StatusCode != 200 || !strings.Contains(got, text) {
		t.Errorf("%d, %d bytes", resp.StatusCode, len(got))
	}
}

// counted counts the calls of each interceptor.
type counted struct {
	registered
	unary, stream, ended atomic.Int32
}

func (c *counted) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	c.unary.Add(1)
	return next(ctx, req)
}

func (c *counted) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c.stream.Add(1)
	defer c.ended.Add(1)
	return next(srv, ss)
}

func TestInterceptorsRunOncePerTypedCall(t *testing.T) {
	c := &counted{registered: registered{&services{}}}
	url := start(t, &services{}, func(_ *gateway.Config, p *gateway.Params) { p.Services = c })
	for _, one := range []struct {
		method, path, body string
		unary, stream      int32
	}{
		{"POST", "/kvpilot/v1/choose", "{}", 1, 0},
		{"GET", "/kvpilot/v1/decisions:watch", "", 1, 1},
		{"POST", "/kvpilot/v1/reservations:track", `{"sequence":"1"}` + "\n" + `{"sequence":"2"}`, 1, 2},
	} {
		call(t, one.method, url+one.path, one.body)
		if c.unary.Load() != one.unary || c.stream.Load() != one.stream || c.ended.Load() != one.stream {
			t.Errorf("%s: %d unary calls, %d streams, %d of them ended", one.path, c.unary.Load(), c.stream.Load(), c.ended.Load())
		}
	}
}

// A handler that panics costs its request and no other one.
func TestTypedPanicsAreAnswered(t *testing.T) {
	url := start(t, &services{
		choose: func(*kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) { panic("10.0.0.1") },
		watch:  func(grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error { panic("10.0.0.1") },
	})
	for method, path := range map[string]string{"POST": "/kvpilot/v1/choose", "GET": "/kvpilot/v1/replicas:watch"} {
		if resp, got := call(t, method, url+path, ""); resp.StatusCode != 500 || !strings.Contains(got, "internal error") || strings.Contains(got, "10.0.0.1") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

// How a stream of messages begins and ends, as its client sees it.
func TestTypedStreams(t *testing.T) {
	type out = grpc.ServerStreamingServer[kvpilotv1.WatchResponse]
	refusal := apierror.New(apierror.RateLimitExceeded, "slow down", nil)
	one := func(to out) error { return to.Send(&kvpilotv1.WatchResponse{Removed: true}) }
	for name, test := range map[string]struct {
		watch  func(out) error
		status int
		body   string
	}{
		"open and empty":    {func(to out) error { return to.SendHeader(httpcall.StreamOpen()) }, 200, ""},
		"one message":       {one, 200, `"removed":true`},
		"a header, then it": {func(to out) error { return errors.Join(to.SetHeader(httpcall.StreamOpen()), one(to)) }, 200, `"removed":true`},
		"rejected":          {func(out) error { return refusal }, 429, "slow down"},
		"rejected later":    {func(to out) error { return errors.Join(one(to), refusal) }, 200, "slow down"},
		"neither":           {func(out) error { return nil }, 500, "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t, &services{watch: test.watch})
			if resp, got := call(t, "GET", url+"/kvpilot/v1/replicas:watch", ""); resp.StatusCode != test.status || !strings.Contains(got, test.body) || test.body == "" && got != "" {
				t.Errorf("%d %s", resp.StatusCode, got)
			}
		})
	}
}

// A request ends after the handler of its stream, though the client left it.
func TestRequestsWaitForTheHandlersOfTheirStreams(t *testing.T) {
	began, ended := make(chan struct{}), false
	g := newHandler(t, &services{watch: func(to grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error {
		close(began)
		<-to.Context().Done()
		ended = true // the race detector sees a request that does not wait
		return to.Send(&kvpilotv1.WatchResponse{})
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/kvpilot/v1/replicas:watch", nil))
	if !ended {
		t.Error("the handler still runs")
	}
}
