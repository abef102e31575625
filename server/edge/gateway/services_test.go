package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

type (
	bodies      = grpc.ServerStreamingServer[httpbody.HttpBody]
	chatHandler = func(*httpcall.Call, *httpbody.HttpBody, bodies) error
)

// services answer as each test says.
type services struct {
	kvpilotv1.UnimplementedInferenceServiceServer
	kvpilotv1.UnimplementedRoutingServiceServer
	kvpilotv1.UnimplementedReplicaServiceServer
	chat   chatHandler
	choose func(*kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error)
	// chooseIn is choose with the call's context.
	chooseIn func(context.Context, *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error)
	list     *kvpilotv1.ListResponse
	watch    func(grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error
}

func (s *services) List(context.Context, *kvpilotv1.ListRequest) (*kvpilotv1.ListResponse, error) {
	return s.list, nil
}

func (s *services) ChatCompletions(in *httpbody.HttpBody, out bodies) error {
	return s.chat(httpcall.From(out.Context()), in, out)
}

func (s *services) Messages(in *httpbody.HttpBody, out bodies) error {
	return s.chat(httpcall.From(out.Context()), in, out)
}

func (s *services) Responses(in *httpbody.HttpBody, out bodies) error {
	return s.chat(httpcall.From(out.Context()), in, out)
}

func (s *services) Rerank(in *httpbody.HttpBody, out bodies) error {
	return s.chat(httpcall.From(out.Context()), in, out)
}

func (s *services) RetrieveResponse(in *kvpilotv1.RetrieveResponseRequest, out bodies) error {
	return s.chat(httpcall.From(out.Context()), &httpbody.HttpBody{Data: []byte(in.GetResponseId())}, out)
}

func (s *services) Forward(in *kvpilotv1.ForwardRequest, out bodies) error {
	return s.chat(httpcall.From(out.Context()), &httpbody.HttpBody{Data: []byte(in.GetMethod() + " " + in.GetPath() + "?" + in.GetQuery() + " " + string(in.GetBody()))}, out)
}

func (s *services) GetModel(_ context.Context, in *kvpilotv1.GetModelRequest) (*httpbody.HttpBody, error) {
	return &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"id":"` + in.GetModel() + `"}`)}, nil
}

func (s *services) ChooseReplica(ctx context.Context, in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
	if s.chooseIn != nil {
		return s.chooseIn(ctx, in)
	}
	if s.choose == nil {
		return &kvpilotv1.ChooseReplicaResponse{}, nil
	}
	return s.choose(in)
}

func (s *services) RouteBody(ctx context.Context, in *httpbody.HttpBody) (*kvpilotv1.ChooseReplicaResponse, error) {
	return &kvpilotv1.ChooseReplicaResponse{Host: "h", Port: 8000, ReplicaId: "r-1",
		Policy: string(in.GetData()) + httpcall.From(ctx).Header.Get("X-Body-Truncated")}, nil
}

func (s *services) Watch(_ *kvpilotv1.WatchRequest, out grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error {
	if s.watch != nil {
		return s.watch(out)
	}
	if err := out.SendHeader(httpcall.StreamOpen()); err != nil {
		return err
	}
	<-out.Context().Done()
	return out.Context().Err()
}

func (s *services) WatchDecisions(_ *kvpilotv1.WatchDecisionsRequest, out grpc.ServerStreamingServer[kvpilotv1.WatchDecisionsResponse]) error {
	for i := range uint64(2) {
		if err := out.Send(&kvpilotv1.WatchDecisionsResponse{Lost: i}); err != nil {
			return err
		}
	}
	return apierror.New(apierror.ShuttingDown, "stopping", nil)
}

func (s *services) TrackReservation(ss grpc.BidiStreamingServer[kvpilotv1.ReservationReport, kvpilotv1.TrackReservationResponse]) error {
	for n := 1; ; n++ {
		in, err := ss.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out := &kvpilotv1.TrackReservationResponse{Sequence: in.GetSequence()}
		if wrong := httpcall.From(ss.Context()).Mistakes.Take(n); wrong != nil {
			out.Message = apierror.From(wrong).Message
		}
		if err := ss.Send(out); err != nil {
			return err
		}
	}
}

// registered are services without interceptors of their own.
type registered struct{ services *services }

func (r registered) Register(to grpc.ServiceRegistrar) {
	kvpilotv1.RegisterInferenceServiceServer(to, r.services)
	kvpilotv1.RegisterRoutingServiceServer(to, r.services)
	kvpilotv1.RegisterReplicaServiceServer(to, r.services)
}

func (registered) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return next(ctx, req)
}

func (registered) Stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, ss)
}

// senders and health are the gateway's interfaces as functions.
type (
	senders func(r *http.Request, requestID, rpc string) (*caller.Caller, error)
	health  func() error
)

func (f senders) Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error) {
	return f(r, requestID, rpc)
}

func (f health) Ready() error { return f() }

type option func(*gateway.Config, *gateway.Params)

// newHandler makes a Gateway over services.
func newHandler(t testing.TB, s *services, options ...option) http.Handler {
	t.Helper()
	c, p := gateway.DefaultConfig(), gateway.Params{Services: registered{s}}
	for _, set := range options {
		set(&c, &p)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// start serves a Gateway on the loopback and returns its URL.
func start(t testing.TB, s *services, options ...option) string {
	t.Helper()
	server := httptest.NewServer(newHandler(t, s, options...))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func call(t testing.TB, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return resp, string(text)
}

// echo answers with the request's own bytes.
func echo(_ *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
	return out.Send(&httpbody.HttpBody{ContentType: "text/plain", Data: in.GetData()})
}
