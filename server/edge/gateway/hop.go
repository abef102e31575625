package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

const (
	// hopBuffer is how much of the connection in memory is on its way in each direction.
	hopBuffer = 64 << 10
	// keyCall is the metadata by which a call on the hop names its HTTP request.
	keyCall = "kvpilot-call"
)

// hop takes typed routes to their handlers: a grpc.Server behind a listener in memory, which only this process can dial. It
// has the same services and interceptors as the gRPC listener, and none of its bounds: those of the HTTP request hold.
//
// A handler sees the values of its HTTP request's context, so the caller, the request's id and the trace go through.
type hop struct {
	listener *bufconn.Listener
	server   *grpc.Server
	conn     *grpc.ClientConn // set before ready is closed
	ready    chan struct{}
	last     atomic.Uint64
	calls    sync.Map // id of a call that has not arrived yet -> context.Context of its HTTP request
}

var _ grpc.ClientConnInterface = (*hop)(nil)

func newHop(p Params) *hop {
	h := &hop{listener: bufconn.Listen(hopBuffer), ready: make(chan struct{})}
	unary, stream := []grpc.UnaryServerInterceptor{keepUnary}, []grpc.StreamServerInterceptor{keepStream}
	if p.Unary != nil {
		unary = append(unary, p.Unary)
	}
	if p.Stream != nil {
		stream = append(stream, p.Stream)
	}
	h.server = grpc.NewServer(
		grpc.InTapHandle(h.arrive), grpc.ForceServerCodecV2(hopCodec{}), grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32), grpc.WaitForHandlers(true),
	)
	p.Register(h.server)
	return h
}

// hopCodec is the standard codec with buffers of the messages' own size. Those of the standard one's pool have 1 MiB for each message above
// 32 KiB, a prompt of 8,192 token ids, and are cleared for it.
type hopCodec struct{}

var _ encoding.CodecV2 = hopCodec{}

// Name implements encoding.CodecV2.
func (hopCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (hopCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	wire, err := proto.Marshal(m)
	return mem.BufferSlice{mem.SliceBuffer(wire)}, err
}

// Unmarshal implements encoding.CodecV2.
func (hopCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return proto.Unmarshal(data.Materialize(), m)
}

// run serves the hop until ctx ends, and returns when its handlers have. It is called once; calls wait for it.
func (h *hop) run(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(hopCodec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
	if err != nil {
		return err
	}
	h.conn = conn
	close(h.ready)
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(h.listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		h.server.Stop()
		if err = <-served; errors.Is(err, grpc.ErrServerStopped) { // before Serve began
			err = nil
		}
	}
	_ = conn.Close() // it is closed once, here
	return err
}

// Invoke implements grpc.ClientConnInterface.
func (h *hop) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, err := h.depart(ctx)
	if err != nil {
		return err
	}
	return h.conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (h *hop) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := h.depart(ctx)
	if err != nil {
		return nil, err
	}
	return h.conn.NewStream(ctx, desc, method, opts...)
}

// depart names a call's HTTP request, until the call arrives or its context ends.
func (h *hop) depart(ctx context.Context) (context.Context, error) {
	select {
	case <-h.ready:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	id := strconv.FormatUint(h.last.Add(1), 10)
	h.calls.Store(id, ctx)
	context.AfterFunc(ctx, func() { h.calls.Delete(id) })
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(keyCall, id)), nil
}

// arrive gives a call the values of its HTTP request's context.
func (h *hop) arrive(ctx context.Context, info *tap.Info) (context.Context, error) {
	if id := info.Header.Get(keyCall); len(id) == 1 {
		if from, ok := h.calls.LoadAndDelete(id[0]); ok {
			return &arrived{Context: ctx, from: from.(context.Context)}, nil
		}
	}
	return nil, status.Error(codes.Canceled, "the request has ended")
}

// arrived is the context of a call on the hop: it ends with the call and has the values of the HTTP request too.
type arrived struct {
	context.Context
	from context.Context
}

// Value implements context.Context.
func (a *arrived) Value(key any) any {
	if v := a.Context.Value(key); v != nil {
		return v
	}
	return a.from.Value(key)
}

// keepUnary keeps a handler's error for the HTTP answer: on the wire it would lose what only REST clients are given.
func keepUnary(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	out, err := next(ctx, in)
	keep(ctx, err)
	return out, err
}

func keepStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := next(srv, ss)
	keep(ss.Context(), err)
	return err
}

func keep(ctx context.Context, err error) {
	if rq := requestFrom(ctx); rq != nil && err != nil {
		rq.handled.Store(&err)
	}
}
