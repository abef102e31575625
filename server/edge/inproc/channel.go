package inproc

import (
	"context"
	"errors"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Params are what a Channel is made of. All fields may be left out.
type Params struct {
	// Unary and Stream run around every handler, the first one outermost.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// OnPanic is told of a handler's panic, which its caller sees as an internal error.
	OnPanic func(method string, value any, stack []byte)
}

// Channel is a client connection to services in this process.
type Channel struct {
	unary   grpc.UnaryServerInterceptor
	stream  grpc.StreamServerInterceptor
	onPanic func(method string, value any, stack []byte)
	methods map[string]*method
}

var (
	_ grpc.ClientConnInterface = (*Channel)(nil)
	_ grpc.ServiceRegistrar    = (*Channel)(nil)
)

// method is one RPC of a registered service.
type method struct {
	name   string
	impl   any
	unary  grpc.MethodHandler
	stream grpc.StreamHandler
	info   *grpc.StreamServerInfo
}

// New makes a Channel without services.
func New(p Params) *Channel {
	c := &Channel{onPanic: p.OnPanic, methods: map[string]*method{}}
	c.unary, c.stream = chainUnary(p.Unary), chainStream(p.Stream)
	if c.onPanic == nil {
		c.onPanic = func(string, any, []byte) {}
	}
	return c
}

// RegisterService adds a service. Like grpc.Server's, it must not be called once calls are made,
// and it panics when a method is registered twice.
func (c *Channel) RegisterService(desc *grpc.ServiceDesc, impl any) {
	add := func(m *method) {
		if _, twice := c.methods[m.name]; twice {
			panic("inproc: " + m.name + " is registered twice")
		}
		c.methods[m.name] = m
	}
	for i := range desc.Methods {
		d := &desc.Methods[i]
		add(&method{name: "/" + desc.ServiceName + "/" + d.MethodName, impl: impl, unary: d.Handler})
	}
	for i := range desc.Streams {
		d := &desc.Streams[i]
		name := "/" + desc.ServiceName + "/" + d.StreamName
		add(&method{name: name, impl: impl, stream: d.Handler, info: &grpc.StreamServerInfo{
			FullMethod: name, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams,
		}})
	}
}

// Invoke makes a unary call, on the caller's goroutine.
func (c *Channel) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	m := c.methods[name]
	if m == nil || m.unary == nil {
		return status.Errorf(codes.Unimplemented, "unknown method %s", name)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	transport := &transport{method: name}
	out, err := c.callUnary(serverContext(ctx, transport), m, args)
	deliver(opts, transport)
	if err != nil {
		return asStatus(err)
	}
	return share(reply, out)
}

func (c *Channel) callUnary(ctx context.Context, m *method, args any) (out any, err error) {
	defer c.contain(m.name, &err)
	return m.unary(m.impl, ctx, func(in any) error { return share(in, args) }, c.unary)
}

// NewStream makes a streaming call.
func (c *Channel) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	m := c.methods[name]
	if m == nil || m.stream == nil {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", name)
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if e := FromContext(ctx); e != nil && e.Answer != nil && !m.info.IsClientStream {
		return c.newDirect(ctx, m, e.Answer, opts), nil
	}
	return c.newRelay(ctx, desc, m, opts), nil
}

// callStream runs a streaming handler inside the interceptors.
func (c *Channel) callStream(m *method, ss grpc.ServerStream) (err error) {
	defer c.contain(m.name, &err)
	if c.stream == nil {
		return m.stream(m.impl, ss)
	}
	return c.stream(m.impl, ss, m.info, m.stream)
}

// contain turns a handler's panic into the error of its call.
func (c *Channel) contain(name string, err *error) {
	if v := recover(); v != nil {
		c.onPanic(name, v, debug.Stack())
		*err = status.Error(codes.Internal, "internal error")
	}
}

// serverContext is what a handler sees: the caller's outgoing metadata as incoming, and a
// transport for the response's header and trailer.
func serverContext(ctx context.Context, t *transport) context.Context {
	if md, ok := metadata.FromOutgoingContext(ctx); ok { // a copy
		ctx = metadata.NewIncomingContext(metadata.NewOutgoingContext(ctx, nil), md)
	} else if _, stale := metadata.FromIncomingContext(ctx); stale {
		ctx = metadata.NewIncomingContext(ctx, nil) // the caller's own metadata is not its callee's
	}
	return grpc.NewContextWithServerTransportStream(ctx, t)
}

// deliver fills the metadata that call options asked for.
func deliver(opts []grpc.CallOption, t *transport) {
	for _, opt := range opts {
		switch o := opt.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = t.headers()
		case grpc.TrailerCallOption:
			*o.TrailerAddr = t.trailers()
		}
	}
}

// asStatus gives a handler's error the form that gRPC callers expect. An error that carries a
// status of its own is passed on as the value it is, so that the REST surface can look inside.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if carrier := (interface{ GRPCStatus() *status.Status })(nil); errors.As(err, &carrier) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

func chainUnary(list []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	first, rest := list[0], chainUnary(list[1:])
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return first(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return rest(ctx, req, info, handler)
		})
	}
}

func chainStream(list []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	first, rest := list[0], chainStream(list[1:])
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return first(srv, ss, info, func(srv any, ss grpc.ServerStream) error {
			return rest(srv, ss, info, handler)
		})
	}
}
