package guard

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"
)

const (
	// deadPeer is how long a connection may be silent before it is pinged, and
	// deadPeerAnswer is how long the answer may take.
	deadPeer       = time.Minute
	deadPeerAnswer = 20 * time.Second
	// minPing is the shortest time between a caller's pings, with or without a call. The third ping that comes sooner ends the connection
	// (too_many_pings). Callers that ping every 10 s, the least that grpc-go allows, have room for delays.
	minPing = 5 * time.Second
	// streamWindow and connWindow are the bytes that a call and a connection may have sent before they are read. grpc-go's own begin at
	// 64 KiB, two prompts, and grow up to 16 MiB by pings: updates and pings took 15 % of the CPU of decisions.
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// Options are the server options that install the guard.
func (d *Guard) Options() []grpc.ServerOption {
	l := d.limits
	return []grpc.ServerOption{
		grpc.InTapHandle(d.tap),
		grpc.ForceServerCodecV2(newCodec(d.Messages)),
		experimental.BufferPool(d.frames),
		grpc.RPCDecompressor(noCompression{}), //nolint:staticcheck // the only way to reject what another package has registered
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.MaxRecvMsgSize(l.Message), grpc.MaxSendMsgSize(l.Message),
		grpc.MaxConcurrentStreams(l.Streams), grpc.MaxHeaderListSize(l.HeaderBytes), grpc.ConnectionTimeout(l.Handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: l.Idle, Time: deadPeer, Timeout: deadPeerAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// noCompression takes the place of gzip, which the exporters of traces register for themselves: a
// small message may hide a huge one.
type noCompression struct{}

// Do implements grpc.Decompressor.
func (noCompression) Do(io.Reader) ([]byte, error) { return note(noteCompressed), nil }

// Type implements grpc.Decompressor.
func (noCompression) Type() string { return "gzip" }

// Registrar registers services and watches their calls. All services of the server must be registered through it, before it serves.
func (d *Guard) Registrar(to reflection.GRPCServer) reflection.GRPCServer { return registrar{d, to} }

type registrar struct {
	guard *Guard
	to    reflection.GRPCServer
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo { return r.to.GetServiceInfo() }

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	for _, m := range desc.Methods {
		r.guard.registered["/"+desc.ServiceName+"/"+m.MethodName] = true
	}
	for _, m := range desc.Streams {
		r.guard.registered["/"+desc.ServiceName+"/"+m.StreamName] = true
	}
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		guarded.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: guardUnary(m.Handler)}
	}
	guarded.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		s.Handler = guardStream(s.Handler, s.ClientStreams)
		guarded.Streams[i] = s
	}
	r.to.RegisterService(&guarded, impl)
}

// guardUnary counts a call's message, and says why one could not be received.
func guardUnary(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		c := FromContext(ctx)
		if c == nil {
			return handler(srv, ctx, decode, interceptor)
		}
		defer c.end()
		c.handled(ctx)
		var message any
		out, err := handler(srv, ctx, func(m any) error {
			c.in.message = m
			if err := decode(&c.in); err != nil {
				return c.reason(err)
			}
			message = m
			return c.received(m)
		}, interceptor)
		if m, ok := message.(proto.Message); ok {
			c.guard.Messages.Done(m)
		}
		if err != nil {
			return out, err
		}
		return c.answered(out)
	}
}

func size(m any) int {
	switch m := m.(type) {
	case *httpbody.HttpBody:
		return len(m.GetData())
	case proto.Message:
		return proto.Size(m)
	}
	return 0
}

// guardStream is guardUnary for streams. live says that the caller sends while it is answered.
func guardStream(handler grpc.StreamHandler, live bool) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		c := FromContext(ss.Context())
		if c == nil {
			return handler(srv, ss)
		}
		defer c.end()
		c.handled(ss.Context())
		c.live.Store(live)
		return handler(srv, &stream{ServerStream: ss, call: c, live: live})
	}
}

// stream watches the messages of a call.
type stream struct {
	grpc.ServerStream
	call *Call
	live bool
}

// RecvMsg implements grpc.ServerStream.
func (s *stream) RecvMsg(m any) error {
	c := s.call
	if s.live { // the message before this one has been dealt with
		c.passed()
	}
	c.in.message = m
	if err := s.ServerStream.RecvMsg(&c.in); err != nil {
		if errors.Is(err, io.EOF) {
			c.receiving.Store(false)
			return err
		}
		return c.reason(err)
	}
	return c.received(m)
}

// SendMsg implements grpc.ServerStream.
func (s *stream) SendMsg(m any) error {
	c := s.call
	c.sending.Store(c.guard.tick.Load())
	err := s.ServerStream.SendMsg(m)
	c.sending.Store(0)
	if err != nil {
		if e := c.rejected.Load(); e != nil {
			return e
		}
	}
	return err
}
