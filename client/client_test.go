package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// router is the smallest router that the client can be tried with: one replica, a tokenizer
// that counts letters, and a book of what was reported.
type router struct {
	kvpilotv1.UnimplementedRoutingServiceServer
	kvpilotv1.UnimplementedInferenceServiceServer
	kvpilotv1.UnimplementedReplicaServiceServer

	mu       sync.Mutex
	reports  []string // guarded by mu
	failures int      // guarded by mu: calls that are still to fail
	header   metadata.MD
}

func (r *router) report(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, s)
}

func (r *router) told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.reports, " ")
}

func (r *router) Tokenize(ctx context.Context, req *kvpilotv1.TokenizeRequest) (*kvpilotv1.TokenizeResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header, _ = metadata.FromIncomingContext(ctx)
	if r.failures > 0 {
		r.failures--
		return nil, status.Error(codes.Unavailable, "starting")
	}
	var ids []uint32
	for _, c := range req.GetText() + string(req.GetBody().GetJson()) {
		ids = append(ids, uint32(c))
	}
	return &kvpilotv1.TokenizeResponse{Sequences: []*kvpilotv1.TokenSequence{{TokenIds: &kvpilotv1.TokenIds{Ids: ids}}}}, nil
}

func (r *router) Detokenize(_ context.Context, req *kvpilotv1.DetokenizeRequest) (*kvpilotv1.DetokenizeResponse, error) {
	var b strings.Builder
	for _, id := range req.GetSequences()[0].GetIds() {
		b.WriteRune(rune(id))
	}
	return &kvpilotv1.DetokenizeResponse{Texts: []string{b.String()}}, nil
}

func (r *router) ChooseReplica(_ context.Context, req *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
	if req.GetModel() == "none" {
		s, err := status.New(codes.NotFound, "no such model").WithDetails(
			&errdetails.ErrorInfo{Domain: "kvpilot", Reason: "MODEL_NOT_FOUND"},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(2 * time.Second)},
			&httpbody.HttpBody{Data: []byte(`{"error":{}}`)})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	}
	resp := &kvpilotv1.ChooseReplicaResponse{ReplicaId: "r1", Url: "http://r1:8000", DecisionId: "d1"}
	if req.GetBooking() != kvpilotv1.Booking_BOOKING_DRY_RUN {
		resp.ReservationId = "res1"
	}
	return resp, nil
}

func (r *router) ReportReservation(_ context.Context, req *kvpilotv1.ReservationReport) (*kvpilotv1.Reservation, error) {
	switch e := req.GetEvent().(type) {
	case *kvpilotv1.ReservationReport_FirstToken:
		r.report("prefill:" + req.GetReservationId())
	case *kvpilotv1.ReservationReport_Progress:
		r.report("progress:" + req.GetReservationId())
	case *kvpilotv1.ReservationReport_Release:
		r.report(e.Release.GetReason().String() + ":" + req.GetReservationId())
	}
	return &kvpilotv1.Reservation{}, nil
}

func (r *router) TrackReservation(s grpc.BidiStreamingServer[kvpilotv1.ReservationReport, kvpilotv1.TrackReservationResponse]) error {
	defer r.report("end")
	for {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp := &kvpilotv1.TrackReservationResponse{Sequence: req.GetSequence()}
		switch {
		case req.GetBind() != nil:
			r.report("bind")
		case req.GetFirstToken() != nil:
			r.report("prefill")
		case req.GetRelease() != nil:
			r.report("release")
		default:
			resp.Reason, resp.Message = kvpilotv1.ErrorReason_ERROR_REASON_RESERVATION_ENDED, "it has ended"
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

func (r *router) ChatCompletions(_ *httpbody.HttpBody, s grpc.ServerStreamingServer[httpbody.HttpBody]) error {
	if err := s.SetHeader(metadata.Pairs("x-kvpilot-replica", "r1")); err != nil {
		return err
	}
	for _, part := range []string{"data: {\"a\"", ":1}\n\ndata: {\"a\":2}\n\n", "data: [DONE]\n\n"} {
		if err := s.Send(&httpbody.HttpBody{ContentType: "text/event-stream", Data: []byte(part)}); err != nil {
			return err
		}
	}
	return nil
}

func (r *router) Watch(_ *kvpilotv1.WatchRequest, s grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error {
	for _, id := range []string{"r1", "r2"} {
		if err := s.Send(&kvpilotv1.WatchResponse{Replica: &kvpilotv1.Replica{ReplicaId: id}}); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "stopping")
}

// serve starts a router in memory and gives the options to reach it.
func serve(r *router) (opts []client.Option, stop func()) {
	ln := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	kvpilotv1.RegisterRoutingServiceServer(s, r)
	kvpilotv1.RegisterInferenceServiceServer(s, r)
	kvpilotv1.RegisterReplicaServiceServer(s, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) })
	return []client.Option{client.WithGRPC(dial)}, func() { s.Stop(); <-done }
}

func dial(t *testing.T, r *router, more ...client.Option) *client.Client {
	t.Helper()
	opts, stop := serve(r)
	c, err := client.Dial("passthrough:///router", append(opts, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		stop()
	})
	return c
}

func TestTokenizeThereAndBack(t *testing.T) {
	c := dial(t, &router{})
	ids, err := c.Tokenize(t.Context(), "m", "hé")
	if err != nil || len(ids) != 2 {
		t.Fatalf("got %v, %v", ids, err)
	}
	if text, err := c.Detokenize(t.Context(), "m", ids); err != nil || text != "hé" {
		t.Errorf("got %q, %v", text, err)
	}
	if ids, err := c.TokenizeBody(t.Context(), []byte(`{}`)); err != nil || len(ids) != 2 {
		t.Errorf("a body: %v, %v", ids, err)
	}
}

func TestHarmlessCallsAreRetried(t *testing.T) {
	r := &router{failures: 2}
	c := dial(t, r)
	if _, err := c.Tokenize(t.Context(), "m", "x"); err != nil {
		t.Errorf("after two failures: %v", err)
	}
}

func TestKeyAndHeadersAreSent(t *testing.T) {
	r := &router{}
	c := dial(t, r, client.WithAPIKey("k"))
	ctx := client.WithHeaders(t.Context(), "X-Session-Id", "s1")
	if _, err := c.Tokenize(ctx, "m", "x"); err != nil {
		t.Fatal(err)
	}
	if got := r.header.Get("authorization"); len(got) != 1 || got[0] != "Bearer k" {
		t.Errorf("authorization %q", got)
	}
	if got := r.header.Get("x-session-id"); len(got) != 1 || got[0] != "s1" {
		t.Errorf("x-session-id %q", got)
	}
}

func TestAChoiceReportsItsLife(t *testing.T) {
	r := &router{}
	c := dial(t, r)
	ch, err := c.ChooseForBody(t.Context(), []byte(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{ch.PrefillDone(t.Context()), ch.Progress(t.Context(), 7), ch.Release(t.Context(), kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED, client.Result{})} {
		if err != nil {
			t.Error(err)
		}
	}
	if got, want := r.told(), "prefill:res1 progress:res1 RELEASE_REASON_COMPLETED:res1"; got != want {
		t.Errorf("reported %q, want %q", got, want)
	}
	dry, err := c.Choose(t.Context(), &kvpilotv1.ChooseReplicaRequest{Booking: kvpilotv1.Booking_BOOKING_DRY_RUN})
	if err != nil || dry.Booked() {
		t.Fatalf("dry run: %v, booked %v", err, dry.Booked())
	}
	if err := dry.Release(t.Context(), kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED, client.Result{}); err != nil || strings.Count(r.told(), "RELEASE") != 1 {
		t.Errorf("a dry run was released: %v, %s", err, r.told())
	}
}

func TestErrorsHaveReasons(t *testing.T) {
	c := dial(t, &router{})
	_, err := c.Choose(t.Context(), &kvpilotv1.ChooseReplicaRequest{Model: "none"})
	if got := client.Reason(err); got != kvpilotv1.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND {
		t.Errorf("reason %v", got)
	}
	if d, ok := client.RetryAfter(err); !ok || d != 2*time.Second {
		t.Errorf("retry after %v, %v", d, ok)
	}
	if got := string(client.Body(err)); got != `{"error":{}}` {
		t.Errorf("body %q", got)
	}
	if got := client.Reason(errors.New("x")); got != kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Errorf("a foreign error has reason %v", got)
	}
}

func TestTrackerTiesChoicesToItsStream(t *testing.T) {
	r := &router{}
	c := dial(t, r)
	tr, err := c.Track(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ch, err := tr.Choose(t.Context(), &kvpilotv1.ChooseReplicaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.PrefillDone(t.Context()); err != nil {
		t.Error(err)
	}
	var bad *client.ReportError
	if err := ch.Progress(t.Context(), 3); !errors.As(err, &bad) || bad.Reason != kvpilotv1.ErrorReason_ERROR_REASON_RESERVATION_ENDED {
		t.Errorf("a refused report gives %v", err)
	}
	if err := ch.Release(t.Context(), kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED, client.Result{}); err != nil {
		t.Error(err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if got, want := r.told(), "bind prefill release end"; got != want {
		t.Errorf("reported %q, want %q", got, want)
	}
	if err := ch.PrefillDone(t.Context()); !errors.Is(err, client.ErrTrackerClosed) {
		t.Errorf("a report on a closed tracker gives %v", err)
	}
}

func TestStreamsComeRawOrAsEvents(t *testing.T) {
	c := dial(t, &router{})
	raw, err := c.Chat(t.Context(), []byte(`{}`))
	if want := "data: {\"a\":1}\n\ndata: {\"a\":2}\n\ndata: [DONE]\n\n"; err != nil || string(raw) != want {
		t.Errorf("raw: %q, %v", raw, err)
	}
	s, err := c.ChatStream(t.Context(), []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got []string
	for {
		ev, err := s.Event()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(ev))
	}
	if strings.Join(got, " ") != `{"a":1} {"a":2}` {
		t.Errorf("events %q", got)
	}
	if h, err := s.Header(); err != nil || h.Get("x-kvpilot-replica")[0] != "r1" || s.ContentType() != "text/event-stream" {
		t.Errorf("header %v, %v, type %s", h, err, s.ContentType())
	}
	if _, err := c.Open(t.Context(), "/nowhere", nil); err == nil {
		t.Error("an unknown path was opened")
	}
}

func TestWatchEndsWithItsReason(t *testing.T) {
	c := dial(t, &router{})
	var ids []string
	for m, err := range c.WatchReplicas(t.Context(), "") {
		if err != nil {
			ids = append(ids, status.Code(err).String())
			break
		}
		ids = append(ids, m.GetReplica().GetReplicaId())
	}
	if got := strings.Join(ids, " "); got != "r1 r2 Unavailable" {
		t.Errorf("watched %s", got)
	}
}

func TestAURLIsNoTarget(t *testing.T) {
	for _, target := range []string{"http://router:9090", "https://router:9090/", "grpc://router:9090"} {
		c, err := client.Dial(target)
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "a target is host:port of the router's gRPC address, without ") || !strings.Contains(err.Error(), ": router:9090 (WithTLS encrypts)") {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"router:9090", "dns:///router:9090", "unix:/run/router.sock"} {
		c, err := client.Dial(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		c.Close()
	}
}
