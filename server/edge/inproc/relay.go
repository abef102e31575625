package inproc

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// relay is a stream whose handler runs on a goroutine of its own. Messages are handed over one at
// a time, so a slow reader holds the writer back.
type relay struct {
	desc *grpc.StreamDesc
	opts []grpc.CallOption
	ctx  context.Context // the caller's: gRPC's interfaces ask for it by method
	t    transport

	up       chan any // caller to handler
	down     chan any // handler to caller
	halfDone chan struct{}
	closeUp  sync.Once
	done     chan struct{} // closed after err is set
	err      error         // how the handler ended; written once, before done is closed
	ended    bool          // the caller has seen the end; used by its receiving goroutine only
}

func (c *Channel) newRelay(ctx context.Context, desc *grpc.StreamDesc, m *method, opts []grpc.CallOption) *relay {
	r := &relay{
		desc: desc, opts: opts, ctx: ctx,
		up: make(chan any), down: make(chan any),
		halfDone: make(chan struct{}), done: make(chan struct{}),
	}
	r.t.method, r.t.onSent = m.name, make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	server := &relayServer{relay: r, ctx: serverContext(ctx, &r.t)}
	go func() {
		defer cancel()
		r.err = asStatus(c.callStream(m, server))
		r.t.flush()
		close(r.done)
	}()
	return r
}

func (r *relay) Context() context.Context { return r.ctx }

// Header waits until the handler has sent its header, or ended.
func (r *relay) Header() (metadata.MD, error) {
	select {
	case <-r.t.onSent:
		return r.t.headers(), nil
	case <-r.ctx.Done():
		return nil, status.FromContextError(r.ctx.Err()).Err()
	}
}

func (r *relay) Trailer() metadata.MD {
	select {
	case <-r.done:
		return r.t.trailers()
	default:
		return nil
	}
}

func (r *relay) CloseSend() error {
	r.closeUp.Do(func() { close(r.halfDone) })
	return nil
}

// SendMsg returns io.EOF when the handler has ended; RecvMsg then tells how.
func (r *relay) SendMsg(m any) error {
	select {
	case <-r.halfDone:
		return status.Error(codes.Internal, "SendMsg after CloseSend")
	default:
	}
	select {
	case r.up <- m:
		return nil
	case <-r.done:
		return io.EOF
	case <-r.ctx.Done():
		return io.EOF
	}
}

func (r *relay) RecvMsg(m any) error {
	if r.ended {
		return io.EOF
	}
	select {
	case got := <-r.down:
		if err := share(m, got); err != nil || r.desc.ServerStreams {
			return err
		}
	case <-r.done:
		return r.finish()
	case <-r.ctx.Done():
		return r.cancelled()
	}
	// A single response: the call is over only when the handler says so.
	select {
	case <-r.done:
		if err := r.finish(); err != io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is an answer that was cut off
			return err
		}
		return nil
	case <-r.ctx.Done():
		return r.cancelled()
	}
}

// cancelled prefers the handler's own end when it came first.
func (r *relay) cancelled() error {
	select {
	case <-r.done:
		return r.finish()
	default:
		r.ended = true
		return status.FromContextError(r.ctx.Err()).Err()
	}
}

func (r *relay) finish() error {
	r.ended = true
	deliver(r.opts, &r.t)
	if r.err != nil {
		return r.err
	}
	return io.EOF
}

// relayServer is the handler's end.
type relayServer struct {
	relay *relay
	ctx   context.Context // the handler's: gRPC's interfaces ask for it by method
}

func (s *relayServer) Context() context.Context        { return s.ctx }
func (s *relayServer) SetHeader(md metadata.MD) error  { return s.relay.t.SetHeader(md) }
func (s *relayServer) SendHeader(md metadata.MD) error { return s.relay.t.SendHeader(md) }
func (s *relayServer) SetTrailer(md metadata.MD)       { _ = s.relay.t.SetTrailer(md) } // it never fails

func (s *relayServer) SendMsg(m any) error {
	s.relay.t.flush()
	select {
	case s.relay.down <- m:
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *relayServer) RecvMsg(m any) error {
	select {
	case got := <-s.relay.up:
		return share(m, got)
	case <-s.relay.halfDone:
		return io.EOF // every SendMsg before CloseSend has been taken: the channel holds nothing
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}
