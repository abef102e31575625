package inproc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/inproc"
)

// taken is an Answer that keeps copies.
type taken struct {
	status int
	body   []byte
	fail   error
}

func (a *taken) Begin(status int, _ http.Header) error { a.status = status; return nil }

func (a *taken) Message(msg any) error {
	if a.fail != nil {
		return a.fail
	}
	a.body = append(a.body, msg.(*httpbody.HttpBody).GetData()...)
	return nil
}

func chat(t testing.TB, p inproc.Params, h func(*httpbody.HttpBody, grpc.ServerStreamingServer[httpbody.HttpBody]) error) kvpilotv1.InferenceServiceClient {
	t.Helper()
	c := inproc.New(p)
	kvpilotv1.RegisterInferenceServiceServer(c, inference{chat: h})
	return kvpilotv1.NewInferenceServiceClient(c)
}

func TestDirectStreamUsesOneBuffer(t *testing.T) {
	request := []byte("in")
	client := chat(t, inproc.Params{}, func(in *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
		if &in.GetData()[0] != &request[0] {
			t.Error("the request body was copied")
		}
		if err := inproc.FromContext(ss.Context()).Answer.Begin(201, nil); err != nil {
			return err
		}
		var out httpbody.HttpBody
		buf := make([]byte, 1)
		for _, c := range []byte("stream") {
			buf[0] = c
			out.Data = buf
			if err := ss.Send(&out); err != nil {
				return err
			}
		}
		return nil
	})
	a := &taken{}
	ctx := inproc.WithExchange(t.Context(), &inproc.Exchange{Answer: a})
	stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{Data: request})
	if err != nil {
		t.Fatal(err)
	}
	if md, err := stream.Header(); err != nil || len(md) != 0 || a.status != 0 {
		t.Errorf("Header = %v, %v: it must not run the handler", md, err)
	}
	for range 2 {
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("Recv = %v, want EOF", err)
		}
	}
	if string(a.body) != "stream" || a.status != 201 {
		t.Errorf("answer %d %q", a.status, a.body)
	}
}

func TestDirectStreamErrors(t *testing.T) {
	refused := apierror.Upstream(422, "application/json", []byte(`{"error":"x"}`))
	gone := errors.New("client gone")
	for name, tc := range map[string]struct {
		handler func(grpc.ServerStreamingServer[httpbody.HttpBody]) error
		answer  *taken
		check   func(error) bool
	}{
		"an error keeps its value": {
			func(grpc.ServerStreamingServer[httpbody.HttpBody]) error { return refused }, &taken{},
			func(err error) bool { return apierror.From(err) == refused },
		},
		"the client disconnected": {
			func(ss grpc.ServerStreamingServer[httpbody.HttpBody]) error { return ss.Send(&httpbody.HttpBody{}) }, &taken{fail: gone},
			func(err error) bool { return status.Code(err) == codes.Unknown },
		},
		"a panic": {
			func(grpc.ServerStreamingServer[httpbody.HttpBody]) error { panic("at the disco") }, &taken{},
			func(err error) bool {
				return status.Code(err) == codes.Internal && status.Convert(err).Message() == "internal error"
			},
		},
		"an io.EOF of the handler is no success": {
			func(grpc.ServerStreamingServer[httpbody.HttpBody]) error { return io.EOF }, &taken{},
			func(err error) bool { return status.Code(err) == codes.Unknown },
		},
	} {
		t.Run(name, func(t *testing.T) {
			panics := 0
			client := chat(t, inproc.Params{OnPanic: func(string, any, []byte) { panics++ }},
				func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
					return tc.handler(ss)
				})
			ctx := inproc.WithExchange(t.Context(), &inproc.Exchange{Answer: tc.answer})
			stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); !tc.check(err) {
				t.Errorf("Recv = %v", err)
			}
			if want := name == "a panic"; want != (panics == 1) {
				t.Errorf("OnPanic ran %d times", panics)
			}
		})
	}
}

// TestPanicsStayInTheirCall: a panic on the relay's own goroutine would end the process.
func TestPanicsStayInTheirCall(t *testing.T) {
	client := chat(t, inproc.Params{}, func(*httpbody.HttpBody, grpc.ServerStreamingServer[httpbody.HttpBody]) error { panic("x") })
	stream, err := client.ChatCompletions(t.Context(), &httpbody.HttpBody{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("Recv = %v", err)
	}
}

func TestMetadataDoesNotLeakThrough(t *testing.T) {
	var in, out metadata.MD
	client := chat(t, inproc.Params{}, func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
		in, _ = metadata.FromIncomingContext(ss.Context())
		out, _ = metadata.FromOutgoingContext(ss.Context())
		return nil
	})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("callers", "own"))
	call := func(ctx context.Context) {
		stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	call(ctx)
	if len(in) != 0 {
		t.Errorf("the handler sees its caller's incoming metadata: %v", in)
	}
	call(metadata.AppendToOutgoingContext(ctx, "k", "v"))
	if len(in.Get("k")) != 1 || len(out) != 0 {
		t.Errorf("incoming %v, outgoing %v", in, out)
	}
}

func TestCancelReachesTheHandlerAtOnce(t *testing.T) {
	for _, direct := range []bool{true, false} {
		seen := make(chan time.Time, 1)
		ready := make(chan struct{})
		client := chat(t, inproc.Params{}, func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
			close(ready)
			<-ss.Context().Done()
			seen <- time.Now()
			return ss.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		if direct {
			ctx = inproc.WithExchange(ctx, &inproc.Exchange{Answer: &taken{}})
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
				t.Errorf("Recv = %v", err)
			}
		})
		<-ready
		start := time.Now()
		cancel()
		if d := (<-seen).Sub(start); d > 100*time.Millisecond {
			t.Errorf("direct=%t: the handler learned of it after %v", direct, d)
		}
		wg.Wait()
	}
}

// FuzzBidi plays a script of both ends: whatever the order, messages arrive in order, and the
// call ends without a goroutine left.
func FuzzBidi(f *testing.F) {
	f.Add([]byte("srsrc"))
	f.Add([]byte("ssx"))
	f.Add([]byte("c"))
	f.Add([]byte("e"))
	f.Fuzz(func(t *testing.T, script []byte) {
		c := inproc.New(inproc.Params{})
		kvpilotv1.RegisterRoutingServiceServer(c, routing{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		stream, err := kvpilotv1.NewRoutingServiceClient(c).TrackReservation(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for want := uint64(0); ; want++ {
				got, err := stream.Recv()
				if err != nil {
					return
				}
				if got.GetSequence() != want {
					t.Errorf("message %d arrived as number %d", got.GetSequence(), want)
				}
			}
		})
		next := uint64(0)
		for _, op := range script {
			switch {
			case op == 'c':
				_ = stream.CloseSend() // sending on is refused below
			case op == 'x':
				cancel()
			case op == 'e':
				_ = stream.Send(&kvpilotv1.TrackReservationRequest{Sequence: 99}) // may be over
			case next < 90:
				if stream.Send(&kvpilotv1.TrackReservationRequest{Sequence: next}) == nil {
					next++
				}
			}
		}
		_ = stream.CloseSend() // twice is allowed
	})
}
