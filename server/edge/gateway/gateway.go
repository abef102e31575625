package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Senders identifies the senders of requests.
type Senders interface {
	// Authorize identifies the sender of a request before its body is read. rpc is the full name of the method that the
	// route stands for; empty when there is no such route. Its errors are shown as package apierror says.
	Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error)
}

// Health is the router's.
type Health interface {
	// Ready returns why the router should get no requests now; nil when it should. The text is the answer to /health.
	Ready() error
}

// Params are the parts that a Gateway works with. Services is required.
type Params struct {
	Services Services
	// Senders may be nil: that leaves the callers to the services.
	Senders Senders
	// Health may be nil: the router is always ready.
	Health Health
	// Ledger counts the memory that requests hold; nil makes one of the configured size.
	Ledger *ledger.Ledger
	// Forward passes paths without a route on to InferenceService.Forward instead of answering 404.
	Forward bool

	Scope      scope.Scope
	Propagator propagation.TextMapPropagator
}

// Gateway answers HTTP requests. Make one with New.
type Gateway struct {
	conf       atomic.Pointer[Config]
	routes     *routes
	handlers   *handlers
	typed      *runtime.ServeMux // the generated handlers of typed routes
	forwards   bool              // InferenceService.Forward answers paths without a route
	senders    Senders           // may be nil
	health     Health            // may be nil
	origins    *origins
	metrics    *metrics
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	ledger     *ledger.Ledger
	tunnels    tunnels
}

// defaultPlaces bounds the requests of a Gateway with a ledger of its own.
const defaultPlaces = 1 << 30

// New makes a Gateway with the routes of the contract.
func New(c Config, p Params) (*Gateway, error) {
	g := &Gateway{
		senders: p.Senders, health: p.Health, forwards: p.Forward,
		propagator: p.Propagator, metrics: newMetrics(p.Scope.Meters()),
	}
	g.conf.Store(&c)
	if g.ledger = p.Ledger; g.ledger == nil {
		g.ledger = ledger.New(ledger.Config{Bytes: c.Bodies(), Places: defaultPlaces}, p.Scope.Meters())
	}
	if g.propagator == nil {
		g.propagator = propagation.TraceContext{}
	}
	g.tracer = p.Scope.Tracer("server/edge/gateway")
	var err error
	if g.origins, err = newOrigins(c.AllowOrigins); err != nil {
		return nil, err
	}
	if g.routes, err = readRoutes(); err != nil {
		return nil, err
	}
	g.handlers = newHandlers(p.Services, p.Scope.Log())
	g.typed, err = newTypedMux(inProcess{g.handlers})
	return g, err
}

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

// BodyTimeout returns how long a body may take to arrive, by the current settings.
func (g *Gateway) BodyTimeout() time.Duration { return g.conf.Load().BodyTimeout }

// Leave rejects new WebSockets, waits for the open ones until ctx ends, and then closes them. It returns when the
// last handler has ended; an error means that some were closed by it. It must be called once only.
func (g *Gateway) Leave(ctx context.Context) error {
	none := g.tunnels.leave()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
	}
	g.tunnels.cut()
	<-none // their connections are closed
	return ctx.Err()
}
