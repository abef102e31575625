package inproc_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/inproc"
)

type discard struct{ n int }

func (d *discard) Begin(int, http.Header) error { return nil }
func (d *discard) Message(msg any) error        { d.n += len(msg.(*httpbody.HttpBody).GetData()); return nil }

// BenchmarkChunk is the hop's cost of one streamed chunk of 220 bytes.
func BenchmarkChunk(b *testing.B) {
	chunk := make([]byte, 220)
	b.Run("direct", func(b *testing.B) {
		b.ReportAllocs()
		client := chat(b, inproc.Params{}, func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
			var out httpbody.HttpBody
			for b.Loop() {
				out.Data = chunk
				if err := ss.Send(&out); err != nil {
					return err
				}
			}
			return nil
		})
		ctx := inproc.WithExchange(b.Context(), &inproc.Exchange{Answer: &discard{}})
		stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	})
	b.Run("relay", func(b *testing.B) {
		b.ReportAllocs()
		client := chat(b, inproc.Params{}, func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
			for {
				if err := ss.Send(&httpbody.HttpBody{Data: chunk}); err != nil {
					return err
				}
			}
		})
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
		}
	})
	// The coroutine is the road not taken (docs/adr/003): the floor of what it could cost.
	b.Run("coroutine", func(b *testing.B) {
		b.ReportAllocs()
		next, stop := iter.Pull(func(yield func(*httpbody.HttpBody) bool) {
			for out := (&httpbody.HttpBody{Data: chunk}); yield(out); {
			}
		})
		defer stop()
		for b.Loop() {
			if m, ok := next(); !ok || len(m.GetData()) != 220 {
				b.Fatal("ended")
			}
		}
	})
}

// BenchmarkRequest is the hop's cost of one call without its handler's work.
func BenchmarkRequest(b *testing.B) {
	b.Run("direct", func(b *testing.B) {
		b.ReportAllocs()
		out := &httpbody.HttpBody{Data: make([]byte, 1024)}
		client := chat(b, inproc.Params{}, func(_ *httpbody.HttpBody, ss grpc.ServerStreamingServer[httpbody.HttpBody]) error {
			return ss.Send(out)
		})
		ctx := inproc.WithExchange(b.Context(), &inproc.Exchange{Answer: &discard{}})
		in := &httpbody.HttpBody{}
		for b.Loop() {
			stream, err := client.ChatCompletions(ctx, in)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
		}
	})
	b.Run("unary", func(b *testing.B) {
		b.ReportAllocs()
		c := inproc.New(inproc.Params{})
		kvpilotv1.RegisterRoutingServiceServer(c, routing{})
		client := kvpilotv1.NewRoutingServiceClient(c)
		in := &kvpilotv1.TokenizeRequest{Model: "m"}
		for b.Loop() {
			if _, err := client.Tokenize(b.Context(), in); err != nil {
				b.Fatal(err)
			}
		}
	})
}
