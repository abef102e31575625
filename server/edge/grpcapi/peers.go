package grpcapi

import (
	"context"

	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// RegisterForPeers adds the services that routers of the fleet pass calls on to. to must be a listener that only they reach: it believes
// their statements about a call's sender.
func (a *API) RegisterForPeers(to grpc.ServiceRegistrar) {
	kvpilotv1.RegisterRoutingServiceServer(peerRegistrar{a.interceptors, to}, a.routing)
	kvpilotv1.RegisterRouterServiceServer(peerRegistrar{a.interceptors, to}, a.status)
}

// peerRegistrar registers services with the interceptors, behind one that reads the sender.
type peerRegistrar struct {
	around *interceptors
	to     grpc.ServiceRegistrar
}

// RegisterService implements grpc.ServiceRegistrar.
func (r peerRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		own.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			ctx, err := r.around.admitPassed(ctx)
			if err != nil {
				return nil, err
			}
			return m.Handler(srv, ctx, decode, r.around.Unary)
		}}
	}
	own.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		handler, info := s.Handler, &grpc.StreamServerInfo{FullMethod: "/" + desc.ServiceName + "/" + s.StreamName, IsClientStream: s.ClientStreams, IsServerStream: s.ServerStreams}
		s.Handler = func(srv any, ss grpc.ServerStream) error {
			ctx, err := r.around.admitPassed(ss.Context())
			if err != nil {
				return err
			}
			return r.around.Stream(srv, &passedStream{ss, ctx}, info, handler)
		}
		own.Streams[i] = s
	}
	r.to.RegisterService(&own, impl)
}

// passedStream is a stream with the sender in its context.
type passedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *passedStream) Context() context.Context { return s.ctx }

// admitPassed reads the sender of a call that a router has passed on. A caller that a router admits without credentials has no role at
// one that asks for them.
func (a *admission) admitPassed(ctx context.Context) (context.Context, error) {
	who, address, err := forward.Received(ctx)
	if err != nil {
		return nil, apierror.New(apierror.Unauthenticated, "the call has no caller", err)
	}
	if who.By == caller.Open && !a.callers.Open() {
		who = &caller.Caller{By: caller.Open}
	}
	return context.WithValue(ctx, passedKey{}, &passed{who, address}), nil
}
