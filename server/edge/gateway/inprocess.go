package gateway

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// inProcess is the client connection of the generated handlers of typed routes. A call runs the method's handler in this process, in
// the context of the HTTP request: messages are passed without being encoded, errors as the handler returns them. Of a call's
// metadata, the header of a stream passes; call options have no effect.
type inProcess struct{ *handlers }

var _ grpc.ClientConnInterface = inProcess{}

// Invoke implements grpc.ClientConnInterface. The handler runs on the caller's goroutine.
func (c inProcess) Invoke(ctx context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	answer, err := c.callUnary(ctx, method, func(m any) error { return pass(in, m) })
	if err != nil {
		return err
	}
	return pass(answer, out)
}

// NewStream implements grpc.ClientConnInterface. The handler runs on a goroutine of its own, which typed.serve waits for.
func (c inProcess) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	p := &pipe{ctx: ctx, in: make(chan any, 1), out: make(chan any), opened: make(chan struct{}), ended: make(chan struct{})}
	typedFrom(ctx).streams.Go(func() {
		p.err = c.callStream(method, serverEnd{p})
		p.open()
		close(p.ended)
	})
	return clientEnd{p}, nil
}

// pipe is a stream between a generated handler of a route and the handler of its method.
type pipe struct {
	ctx    context.Context // of the request
	in     chan any        // to the handler; it has room for the only message of a stream of answers
	out    chan any        // from the handler, which waits until its message is taken
	once   sync.Once
	opened chan struct{} // closed when header is final
	header metadata.MD
	ended  chan struct{} // closed when the handler has returned err
	err    error
}

func (p *pipe) open() { p.once.Do(func() { close(p.opened) }) }

// serverEnd is a pipe as the method's handler sees it.
type serverEnd struct{ *pipe }

var _ grpc.ServerStream = serverEnd{}

// Context implements grpc.ServerStream.
func (s serverEnd) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (s serverEnd) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader implements grpc.ServerStream.
func (s serverEnd) SendHeader(md metadata.MD) error {
	defer s.open()
	return s.SetHeader(md)
}

// SetTrailer implements grpc.ServerStream. Answers over REST have no trailer.
func (s serverEnd) SetTrailer(metadata.MD) {}

// SendMsg implements grpc.ServerStream.
func (s serverEnd) SendMsg(m any) error {
	s.open()
	select {
	case s.out <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// RecvMsg implements grpc.ServerStream.
func (s serverEnd) RecvMsg(m any) error {
	select {
	case in, more := <-s.in:
		if !more {
			return io.EOF
		}
		return pass(in, m)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// clientEnd is a pipe as the generated handler of a route sees it.
type clientEnd struct{ *pipe }

var _ grpc.ClientStream = clientEnd{}

// Context implements grpc.ClientStream.
func (c clientEnd) Context() context.Context { return c.ctx }

// Header implements grpc.ClientStream.
func (c clientEnd) Header() (metadata.MD, error) {
	<-c.opened
	return c.header, nil
}

// Trailer implements grpc.ClientStream.
func (c clientEnd) Trailer() metadata.MD { return nil }

// SendMsg implements grpc.ClientStream.
func (c clientEnd) SendMsg(m any) error {
	select {
	case c.in <- m: // also to a handler that has returned: RecvMsg has its error
		return nil
	default:
	}
	select {
	case c.in <- m:
		return nil
	case <-c.ended:
		return io.EOF
	}
}

// CloseSend implements grpc.ClientStream.
func (c clientEnd) CloseSend() error {
	close(c.in)
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (c clientEnd) RecvMsg(m any) error {
	select {
	case out := <-c.out:
		return pass(out, m)
	case <-c.ended:
		if c.err != nil {
			return c.err
		}
		return io.EOF
	}
}

// pass sets the fields of an empty message to the fields of another one of its kind, which its sender does not change any more: lists and
// messages are not copied.
func pass(from, to any) error {
	src, ok := from.(proto.Message)
	dst, also := to.(proto.Message)
	if !ok || !also {
		return status.Errorf(codes.Internal, "%T cannot be passed as %T", from, to)
	}
	m := dst.ProtoReflect()
	src.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		m.Set(field, value)
		return true
	})
	m.SetUnknown(src.ProtoReflect().GetUnknown())
	return nil
}
