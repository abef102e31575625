package inproc

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// direct is a server stream without a second goroutine: the caller's first RecvMsg runs the whole
// handler, whose messages go to the Answer, and returns how it ended. It is both ends of the
// stream, since only one of them ever runs.
type direct struct {
	channel *Channel
	method  *method
	answer  Answer
	opts    []grpc.CallOption

	ctx     context.Context // the caller's: gRPC's interfaces ask for it by method
	server  context.Context
	ended   <-chan struct{} // closed when server ends
	t       transport
	request any
	started bool
}

func (c *Channel) newDirect(ctx context.Context, m *method, a Answer, opts []grpc.CallOption) *clientEnd {
	d := &direct{channel: c, method: m, answer: a, opts: opts, ctx: ctx}
	d.t.method = m.name
	return (*clientEnd)(d)
}

// clientEnd is the caller's view of a direct stream.
type clientEnd direct

func (s *clientEnd) Context() context.Context { return s.ctx }

// Header returns at once and empty: headers go to the Answer, and the handler has not begun.
func (s *clientEnd) Header() (metadata.MD, error) { return nil, nil }

func (s *clientEnd) Trailer() metadata.MD { return s.t.trailers() }

func (s *clientEnd) CloseSend() error { return nil }

func (s *clientEnd) SendMsg(m any) error {
	if s.request != nil {
		return status.Error(codes.Internal, "a second request on a server stream")
	}
	s.request = m
	return nil
}

func (s *clientEnd) RecvMsg(any) error {
	if s.started {
		return io.EOF
	}
	s.started = true
	// The handler's context is the caller's own: it ends with the caller's call, right after the handler.
	s.server = serverContext(s.ctx, &s.t)
	s.ended = s.server.Done()
	err := s.channel.callStream(s.method, (*serverEnd)(s))
	deliver(s.opts, &s.t)
	if err != nil {
		return asStatus(err)
	}
	return io.EOF
}

// serverEnd is the handler's view of a direct stream.
type serverEnd direct

func (s *serverEnd) Context() context.Context        { return s.server }
func (s *serverEnd) SetHeader(md metadata.MD) error  { return s.t.SetHeader(md) }
func (s *serverEnd) SendHeader(md metadata.MD) error { return s.t.SendHeader(md) }
func (s *serverEnd) SetTrailer(md metadata.MD)       { _ = s.t.SetTrailer(md) } // it never fails

func (s *serverEnd) SendMsg(m any) error {
	select {
	case <-s.ended: // cheaper than asking the context, for every message
		return status.FromContextError(s.server.Err()).Err()
	default:
		return s.answer.Message(m)
	}
}

func (s *serverEnd) RecvMsg(m any) error {
	if s.request == nil {
		return io.EOF
	}
	request := s.request
	s.request = nil
	return share(m, request)
}
