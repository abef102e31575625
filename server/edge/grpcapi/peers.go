package grpcapi

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// passed is a call that another router of the fleet has passed on.
type passed struct {
	caller  *caller.Caller
	address string
}

type passedKey struct{}

// reportPatience is how long a report may take at the router that owns the reservation.
const reportPatience = time.Second

// passedOn returns what another router said of the call that it passed on; nil for a call of a client.
func passedOn(ctx context.Context) *passed {
	p, _ := ctx.Value(passedKey{}).(*passed)
	return p
}

// RegisterForPeers adds the services that routers of the fleet pass calls on to. to must be a listener that only they reach: it believes
// what they say of a call's sender.
func (a *API) RegisterForPeers(to grpc.ServiceRegistrar) {
	kvpilotv1.RegisterRoutingServiceServer(peerRegistrar{a, to}, &routing{api: a})
	kvpilotv1.RegisterRouterServiceServer(peerRegistrar{a, to}, &status{api: a})
}

// peerRegistrar registers services with the API's interceptors, behind one that reads the sender.
type peerRegistrar struct {
	api *API
	to  grpc.ServiceRegistrar
}

// RegisterService implements grpc.ServiceRegistrar.
func (r peerRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		own.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			ctx, err := r.api.admitPassed(ctx)
			if err != nil {
				return nil, err
			}
			return m.Handler(srv, ctx, decode, r.api.Unary)
		}}
	}
	own.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		handler, info := s.Handler, &grpc.StreamServerInfo{FullMethod: "/" + desc.ServiceName + "/" + s.StreamName, IsClientStream: s.ClientStreams, IsServerStream: s.ServerStreams}
		s.Handler = func(srv any, ss grpc.ServerStream) error {
			ctx, err := r.api.admitPassed(ss.Context())
			if err != nil {
				return err
			}
			return r.api.Stream(srv, &passedStream{ss, ctx}, info, handler)
		}
		own.Streams[i] = s
	}
	r.to.RegisterService(&own, impl)
}

// passedStream is a stream with the sender in its context.
type passedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream carries its context by definition
}

// Context implements grpc.ServerStream.
func (s *passedStream) Context() context.Context { return s.ctx }

// admitPassed reads the sender of a call that a router has passed on. What a router admits without credentials has no role at
// one that asks for them.
func (a *API) admitPassed(ctx context.Context) (context.Context, error) {
	who, address, err := forward.Received(ctx)
	if err != nil {
		return nil, apierror.New(apierror.Unauthenticated, "the call has no caller", err)
	}
	if who.By == caller.Open && !a.Callers.Open() {
		who = &caller.Caller{By: caller.Open}
	}
	return context.WithValue(ctx, passedKey{}, &passed{who, address}), nil
}

// onward is the context of a call that is passed on to another router.
func (a *API) onward(ctx context.Context) context.Context {
	c := sent(ctx)
	h := http.Header{}
	for name, values := range c.Header {
		if name != a.tenantHeader {
			h[name] = values
		}
	}
	if c.RequestID != "" {
		h.Set("X-Request-Id", c.RequestID)
	}
	return forward.Send(ctx, a.caller(ctx), c.Client, h)
}

// fleet is the other routers as this call may ask them: none for a call that one of them has passed on.
func (a *API) fleet(ctx context.Context) *forward.Fleet {
	if a.Peers == nil || passedOn(ctx) != nil {
		return nil
	}
	return a.Peers
}

// toOwner passes a report on to the router that made the reservation. passed is false when that is this one, or none.
func toOwner[In, Out any](ctx context.Context, a *API, id string, in In, send func(kvpilotv1.RoutingServiceClient, context.Context, In, ...grpc.CallOption) (Out, error)) (out Out, isPassed bool, err error) {
	fleet := a.fleet(ctx)
	if fleet == nil {
		return out, false, nil
	}
	owner, err := fleet.Owner(id)
	if err != nil {
		return out, true, err
	}
	if owner == nil {
		if by := forward.OwnerID(id); by != "" && by != fleet.Self().ID { // what is booked here of it ends by itself
			return out, true, reservationNotFound()
		}
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(a.onward(ctx), reportPatience)
	defer cancel()
	out, err = send(owner.Routing, ctx, in)
	return out, true, forward.Error(err)
}
