package gateway

import (
	"context"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// Services are the contract's, with the interceptors that run around every handler; *grpcapi.API has them.
type Services interface {
	// Register adds the services to a registrar.
	Register(to grpc.ServiceRegistrar)
	Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error)
	Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error
}

// handlers calls the methods of the services in this process, as a grpc.Server would: with the interceptors, and with an error for a panic.
// It is a grpc.ServiceRegistrar.
type handlers struct {
	services Services
	methods  map[string]service // by full name
	log      *slog.Logger
}

// service is one method of the generated server interface. It is empty when the method is not registered.
type service struct {
	impl   any
	unary  grpc.MethodHandler
	stream grpc.StreamHandler
	info   *grpc.StreamServerInfo
}

func newHandlers(s Services, log *slog.Logger) *handlers {
	h := &handlers{services: s, methods: map[string]service{}, log: log}
	s.Register(h)
	return h
}

// RegisterService implements grpc.ServiceRegistrar.
func (h *handlers) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		h.methods["/"+desc.ServiceName+"/"+m.MethodName] = service{impl: impl, unary: m.Handler}
	}
	for _, m := range desc.Streams {
		name := "/" + desc.ServiceName + "/" + m.StreamName
		info := &grpc.StreamServerInfo{FullMethod: name, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}
		h.methods[name] = service{impl: impl, stream: m.Handler, info: info}
	}
}

// streams reports whether a method is one of streams.
func (h *handlers) streams(rpc string) bool { return h.methods[rpc].stream != nil }

// callUnary runs a handler for the message that decode fills.
func (h *handlers) callUnary(ctx context.Context, rpc string, decode func(any) error) (out any, err error) {
	to := h.methods[rpc]
	if to.unary == nil {
		return nil, unimplemented(rpc)
	}
	defer h.recovered(rpc, &err)
	return to.unary(to.impl, ctx, decode, h.services.Unary)
}

// callStream runs a handler for a stream.
func (h *handlers) callStream(rpc string, ss grpc.ServerStream) (err error) {
	to := h.methods[rpc]
	if to.stream == nil {
		return unimplemented(rpc)
	}
	defer h.recovered(rpc, &err)
	return h.services.Stream(to.impl, ss, to.info, to.stream)
}

// recovered makes an error of a panic. It is deferred.
func (h *handlers) recovered(rpc string, err *error) {
	if v := recover(); v != nil {
		h.log.Error("a handler panicked", "method", rpc, "panic", v, "stack", string(debug.Stack()))
		*err = apierror.New(apierror.Internal, "internal error", nil)
	}
}

func unimplemented(rpc string) error { return status.Error(codes.Unimplemented, "unknown method "+rpc) }
