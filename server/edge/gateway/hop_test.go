package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// The handler of a typed route sees the HTTP request, though a real gRPC call lies between.
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
		p.Tracer = recorder.New(recorder.Params{Sampler: sdktrace.AlwaysSample(), Keep: func(*recorder.Trace) {}, Dropped: func(int) {}})
		p.Authorize = func(*http.Request, string, string) (*caller.Caller, error) { return who, nil }
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

// Messages far larger than gRPC's usual bound and the connection's buffer pass in both directions.
func TestLargeTypedMessages(t *testing.T) {
	url := start(t, &services{choose: func(in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		return &kvpilotv1.ChooseReplicaResponse{Reason: in.GetText()}, nil
	}})
	text := strings.Repeat("0123456789", 1<<20)
	if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", `{"text":"`+text+`"}`); resp.StatusCode != 200 || !strings.Contains(got, text) {
		t.Errorf("%d, %d bytes", resp.StatusCode, len(got))
	}
}
