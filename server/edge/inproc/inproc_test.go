package inproc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/inproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// routing and inference are services whose behaviour the request asks for.
type routing struct {
	kvpilotv1.UnimplementedRoutingServiceServer
}

type inference struct {
	kvpilotv1.UnimplementedInferenceServiceServer
	chat func(*httpbody.HttpBody, grpc.ServerStreamingServer[httpbody.HttpBody]) error
}

func (routing) Tokenize(ctx context.Context, req *kvpilotv1.TokenizeRequest) (*kvpilotv1.TokenizeResponse, error) {
	in, _ := metadata.FromIncomingContext(ctx)
	switch req.GetModel() {
	case "metadata":
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-head", strings.Join(in["x-in"], ","))); err != nil {
			return nil, err
		}
		return &kvpilotv1.TokenizeResponse{Source: "ok"}, grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "end"))
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	case "fail":
		return nil, status.Error(codes.FailedPrecondition, "no")
	case "plain":
		return nil, errors.New("plain")
	}
	return &kvpilotv1.TokenizeResponse{Source: req.GetModel(), Sequences: []*kvpilotv1.TokenSequence{{TokenIds: &kvpilotv1.TokenIds{Ids: []uint32{1, 2}}}}}, nil
}

func (routing) WatchDecisions(req *kvpilotv1.WatchDecisionsRequest, ss grpc.ServerStreamingServer[kvpilotv1.WatchDecisionsResponse]) error {
	switch req.GetModel() {
	case "wait":
		<-ss.Context().Done()
		return ss.Context().Err()
	case "header":
		if err := ss.SendHeader(metadata.Pairs("x-head", "1")); err != nil {
			return err
		}
		<-ss.Context().Done()
		return nil
	case "fail":
		return status.Error(codes.Aborted, "early")
	case "late":
		if err := ss.Send(&kvpilotv1.WatchDecisionsResponse{Lost: 1}); err != nil {
			return err
		}
		return status.Error(codes.DataLoss, "late")
	}
	ss.SetTrailer(metadata.Pairs("x-tail", "end"))
	for i := range uint64(3) {
		if err := ss.Send(&kvpilotv1.WatchDecisionsResponse{Lost: i}); err != nil {
			return err
		}
	}
	return nil
}

func (routing) TrackReservation(ss grpc.BidiStreamingServer[kvpilotv1.TrackReservationRequest, kvpilotv1.TrackReservationResponse]) error {
	for {
		in, err := ss.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if in.GetSequence() == 99 {
			return status.Error(codes.OutOfRange, "99")
		}
		if err := ss.Send(&kvpilotv1.TrackReservationResponse{Sequence: in.GetSequence()}); err != nil {
			return err
		}
	}
}

func (i inference) ChatCompletions(req *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
	return i.chat(req, ss)
}

// each runs the test over a socket and over the hop: both must behave alike.
func each(t *testing.T, test func(t *testing.T, conn grpc.ClientConnInterface, calls *record)) {
	t.Helper()
	t.Run("socket", func(t *testing.T) {
		var calls record
		u, s := recorders(&calls)
		server := grpc.NewServer(grpc.ChainUnaryInterceptor(u...), grpc.ChainStreamInterceptor(s...))
		kvpilotv1.RegisterRoutingServiceServer(server, routing{})
		lis := bufconn.Listen(1 << 16)
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = conn.Close()
			server.Stop()
			<-served
		}()
		test(t, conn, &calls)
	})
	t.Run("inproc", func(t *testing.T) {
		var calls record
		u, s := recorders(&calls)
		c := inproc.New(inproc.Params{Unary: u, Stream: s})
		kvpilotv1.RegisterRoutingServiceServer(c, routing{})
		test(t, c, &calls)
	})
}

// record keeps which interceptors ran, in order.
type record struct {
	mu  sync.Mutex
	ran []string // guarded by mu
}

func (r *record) add(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran = append(r.ran, call)
}

func (r *record) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

func recorders(calls *record) ([]grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor) {
	var unary []grpc.UnaryServerInterceptor
	var stream []grpc.StreamServerInterceptor
	for _, name := range []string{"a", "b", "c"} {
		unary = append(unary, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			calls.add(name + info.FullMethod)
			return next(ctx, req)
		})
		stream = append(stream, func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			calls.add(fmt.Sprint(name, info.FullMethod, info.IsClientStream, info.IsServerStream))
			return next(srv, ss)
		})
	}
	return unary, stream
}

func TestUnary(t *testing.T) {
	each(t, func(t *testing.T, conn grpc.ClientConnInterface, calls *record) {
		client := kvpilotv1.NewRoutingServiceClient(conn)
		var header, trailer metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-in", "v")
		got, err := client.Tokenize(ctx, &kvpilotv1.TokenizeRequest{Model: "metadata"}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || got.GetSource() != "ok" {
			t.Fatalf("Tokenize = %v, %v", got, err)
		}
		if header.Get("x-head")[0] != "v" || trailer.Get("x-tail")[0] != "end" {
			t.Errorf("header %v, trailer %v", header, trailer)
		}
		if ran := calls.list(); len(ran) != 3 || !strings.HasPrefix(ran[0], "a/") || !strings.HasPrefix(ran[1], "b/") || !strings.HasPrefix(ran[2], "c/") {
			t.Errorf("interceptors ran as %v", ran)
		}
		if got, err := client.Tokenize(t.Context(), &kvpilotv1.TokenizeRequest{Model: "m"}); err != nil || !slices.Equal(got.GetSequences()[0].GetTokenIds().GetIds(), []uint32{1, 2}) {
			t.Errorf("Tokenize = %v, %v", got, err)
		}
		for model, want := range map[string]codes.Code{"fail": codes.FailedPrecondition, "plain": codes.Unknown} {
			if _, err := client.Tokenize(t.Context(), &kvpilotv1.TokenizeRequest{Model: model}); status.Code(err) != want {
				t.Errorf("%s: %v, want %s", model, err, want)
			}
		}
		if _, err := client.Detokenize(t.Context(), &kvpilotv1.DetokenizeRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("a method that is not there: %v", err)
		}
		if _, err := kvpilotv1.NewReplicaServiceClient(conn).Get(t.Context(), &kvpilotv1.GetRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("a service that is not there: %v", err)
		}
	})
}

func TestDeadlineAndCancel(t *testing.T) {
	each(t, func(t *testing.T, conn grpc.ClientConnInterface, _ *record) {
		client := kvpilotv1.NewRoutingServiceClient(conn)
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := client.Tokenize(short, &kvpilotv1.TokenizeRequest{Model: "wait"}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("unary past its deadline: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.WatchDecisions(ctx, &kvpilotv1.WatchDecisionsRequest{Model: "header"})
		if err != nil {
			t.Fatal(err)
		}
		if md, err := stream.Header(); err != nil || len(md.Get("x-head")) != 1 {
			t.Errorf("Header = %v, %v", md, err)
		}
		cancel()
		if _, err := stream.Recv(); status.Code(err) != codes.Canceled && !errors.Is(err, io.EOF) {
			t.Errorf("Recv after cancel: %v", err)
		}
		if _, err := client.Tokenize(ctx, &kvpilotv1.TokenizeRequest{}); status.Code(err) != codes.Canceled {
			t.Errorf("a call with a dead context: %v", err)
		}
	})
}

func TestServerStream(t *testing.T) {
	each(t, func(t *testing.T, conn grpc.ClientConnInterface, _ *record) {
		client := kvpilotv1.NewRoutingServiceClient(conn)
		recv := func(model string) (lost []uint64, trailer metadata.MD, err error) {
			stream, err := client.WatchDecisions(t.Context(), &kvpilotv1.WatchDecisionsRequest{Model: model})
			if err != nil {
				return nil, nil, err
			}
			for {
				m, err := stream.Recv()
				if err != nil {
					return lost, stream.Trailer(), err
				}
				lost = append(lost, m.GetLost())
			}
		}
		if got, trailer, err := recv(""); !errors.Is(err, io.EOF) || !slices.Equal(got, []uint64{0, 1, 2}) || len(trailer.Get("x-tail")) != 1 {
			t.Errorf("messages %v, trailer %v, end %v", got, trailer, err)
		}
		if got, _, err := recv("fail"); status.Code(err) != codes.Aborted || len(got) != 0 {
			t.Errorf("messages %v, end %v", got, err)
		}
		if got, _, err := recv("late"); status.Code(err) != codes.DataLoss || len(got) != 1 {
			t.Errorf("messages %v, end %v", got, err)
		}
	})
}

func TestBidi(t *testing.T) {
	each(t, func(t *testing.T, conn grpc.ClientConnInterface, calls *record) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := kvpilotv1.NewRoutingServiceClient(conn).TrackReservation(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(5) {
			if err := stream.Send(&kvpilotv1.TrackReservationRequest{Sequence: i}); err != nil {
				t.Fatal(err)
			}
			if got, err := stream.Recv(); err != nil || got.GetSequence() != i {
				t.Fatalf("echo of %d: %v, %v", i, got, err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after CloseSend: %v", err)
		}
		if ran := calls.list(); len(ran) != 3 || !strings.HasSuffix(ran[0], "true true") {
			t.Errorf("interceptors ran as %v", ran)
		}
		stream, err = kvpilotv1.NewRoutingServiceClient(conn).TrackReservation(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&kvpilotv1.TrackReservationRequest{Sequence: 99}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.OutOfRange {
			t.Errorf("the handler's error: %v", err)
		}
		for range 100 { // over a socket the end takes a moment to arrive
			if err = stream.Send(&kvpilotv1.TrackReservationRequest{}); err != nil {
				break
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("Send after the end: %v, want EOF", err)
		}
	})
}
