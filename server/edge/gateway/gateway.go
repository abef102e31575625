package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// Params are what a Gateway works with. Register is required.
type Params struct {
	// Register adds the services to a registrar.
	Register func(grpc.ServiceRegistrar)
	// Unary and Stream run around every handler; they may be nil.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Authorize identifies the sender of a request before its body is read. rpc is the full name of the method that the
	// route stands for; empty when there is no such route. Nil leaves that to the services. Its errors are shown as package
	// apierror says.
	Authorize func(r *http.Request, requestID, rpc string) (*caller.Caller, error)
	// Ready says why the router should get no requests now; nil when it should, as it always is
	// without one. Its text is the answer to /health.
	Ready func() error
	// Ledger counts what requests hold; nil makes one of the configured size.
	Ledger *ledger.Ledger
	// Forward passes paths without a route on to InferenceService.Forward instead of answering 404.
	Forward bool

	Log        *slog.Logger
	Meter      metric.MeterProvider
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
}

// Gateway answers HTTP requests. Make one with New.
type Gateway struct {
	conf      atomic.Pointer[Config]
	routes    *routes
	typed     *runtime.ServeMux // the generated handlers of typed routes
	hop       *hop
	unary     grpc.UnaryServerInterceptor
	stream    grpc.StreamServerInterceptor
	forward   *service // answers paths without a route; nil: 404 does
	authorize func(*http.Request, string, string) (*caller.Caller, error)
	ready     func() error
	cors      *cors
	// crossOrigin keeps pages of other origins from changing anything.
	crossOrigin *http.CrossOriginProtection
	log         *slog.Logger
	metrics     *metrics
	tracer      trace.Tracer
	propagator  propagation.TextMapPropagator
	ledger      *ledger.Ledger
	tunnels     tunnels
}

// defaultPlaces bounds the requests of a Gateway with a ledger of its own.
const defaultPlaces = 1 << 30

// New makes a Gateway with the routes of the contract.
func New(c Config, p Params) (*Gateway, error) {
	g := &Gateway{
		authorize: p.Authorize, ready: p.Ready, cors: newCORS(c.AllowOrigins),
		log: p.Log, propagator: p.Propagator, unary: p.Unary, stream: p.Stream, hop: newHop(p), metrics: newMetrics(p.Meter),
	}
	g.conf.Store(&c)
	if g.ledger = p.Ledger; g.ledger == nil {
		g.ledger = ledger.New(ledger.Config{Bytes: c.Bodies(), Places: defaultPlaces}, p.Meter)
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.propagator == nil {
		g.propagator = propagation.TraceContext{}
	}
	if p.Tracer == nil {
		p.Tracer = noop.NewTracerProvider()
	}
	g.tracer = p.Tracer.Tracer("github.com/kvpilot/kvpilot/server/edge/gateway", trace.WithSchemaURL(span.SchemaURL))
	var err error
	if g.crossOrigin, err = newCrossOrigin(c.AllowOrigins); err != nil {
		return nil, err
	}
	all := services{}
	p.Register(all)
	if g.routes, err = readRoutes(all); err != nil {
		return nil, err
	}
	if p.Forward {
		forward := all[kvpilotv1.InferenceService_Forward_FullMethodName]
		g.forward = &forward
	}
	if g.stream == nil {
		g.stream = func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, ss)
		}
	}
	g.typed = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, codec{}),
		runtime.WithIncomingHeaderMatcher(noHeader),
		runtime.WithOutgoingHeaderMatcher(noHeader),
		runtime.WithOutgoingTrailerMatcher(noHeader),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableChunkedEncoding(),
		runtime.WithWriteContentLength(),
		runtime.WithForwardResponseOption(openStream),
		runtime.WithErrorHandler(g.onError),
		runtime.WithStreamErrorHandler(g.onStreamError),
	)
	if err := g.register(); err != nil {
		return nil, fmt.Errorf("register the contract's routes: %w", err)
	}
	return g, nil
}

// Run serves the typed routes until ctx ends, and returns when their handlers have. It is called once.
func (g *Gateway) Run(ctx context.Context) error { return g.hop.run(ctx) }

// Update replaces the time limits for requests that begin from now on. Other settings of next are ignored.
func (g *Gateway) Update(next Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	merged := *g.conf.Load()
	merged.BodyTimeout, merged.StallTimeout, merged.SSEKeepAlive = next.BodyTimeout, next.StallTimeout, next.SSEKeepAlive
	g.conf.Store(&merged)
	return nil
}

// StallTimeout returns how long a client may read nothing, by the current settings.
func (g *Gateway) StallTimeout() time.Duration { return g.conf.Load().StallTimeout }

// register mounts the generated handlers of the services with typed routes. They start nothing: the context is not kept.
func (g *Gateway) register() error {
	ctx := context.Background()
	if err := kvpilotv1.RegisterRoutingServiceHandlerClient(ctx, g.typed, kvpilotv1.NewRoutingServiceClient(g.hop)); err != nil {
		return err
	}
	if err := kvpilotv1.RegisterReplicaServiceHandlerClient(ctx, g.typed, kvpilotv1.NewReplicaServiceClient(g.hop)); err != nil {
		return err
	}
	if err := kvpilotv1.RegisterRouterServiceHandlerClient(ctx, g.typed, kvpilotv1.NewRouterServiceClient(g.hop)); err != nil {
		return err
	}
	return kvpilotv1.RegisterConfigServiceHandlerClient(ctx, g.typed, kvpilotv1.NewConfigServiceClient(g.hop))
}

// noHeader passes no header as metadata, in either direction: handlers find the client's in its httpcall.Call.
func noHeader(string) (string, bool) { return "", false }
