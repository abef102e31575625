package extproc

import (
	"cmp"
	"context"
	"net/http"
	"runtime/debug"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// Router chooses; *router.Router does.
type Router interface {
	HandOff(ctx context.Context, call *intake.Call, sight router.Sight) (*router.Handoff, error)
}

// Senders identifies the senders of requests, and says what they may ask.
type Senders interface {
	// Authorize identifies the sender of a request. rpc is the full name of the method whose roles the sender needs.
	Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error)
	// RoutingOptions reads what the headers of a request ask of the choice.
	RoutingOptions(h http.Header) (chooser.Options, error)
}

// Fleet shows the replicas; *registry.Registry does.
type Fleet interface {
	Snapshot() *registry.Snapshot
}

// Objectives have priorities by name; *registry.Objectives does.
type Objectives interface {
	// Priority returns the priority of an objective, higher first; false when there is none of that name.
	Priority(name string) (int, bool)
}

// Times are limits that may change while the router runs.
type Times interface {
	// BodyTimeout limits the time in which a body arrives; zero does not.
	BodyTimeout() time.Duration
}

type endless struct{}

func (endless) BodyTimeout() time.Duration { return 0 }

// Params are what a Server works with. Router, Senders, Fleet and Ledger are required.
type Params struct {
	Router  Router
	Senders Senders
	Fleet   Fleet
	// Ledger counts what requests hold.
	Ledger *ledger.Ledger
	// TenantHeader is the header in which gateways send the tenant of a request.
	TenantHeader string
	// MaxBodyBytes is the limit of bodies where the Config has none.
	MaxBodyBytes int64
	// Times are the limits of the surfaces; nil has none.
	Times Times
	// Objectives are those that the settings do not name; nil has none.
	Objectives Objectives
	// Rewrites give requests other models; nil gives none.
	Rewrites intake.Rewrites

	Scope      scope.Scope
	Propagator propagation.TextMapPropagator
}

// Server answers gateways. It is safe for concurrent use.
type Server struct {
	extproc.UnimplementedExternalProcessorServer
	config    Config
	params    Params
	maxBody   int64
	metrics   *metrics
	tracer    trace.Tracer
	endpoints *endpoints
	partings  partings
}

// New makes a Server.
func New(c Config, p Params) *Server {
	if p.Propagator == nil {
		p.Propagator = propagation.TraceContext{}
	}
	if p.Times == nil {
		p.Times = endless{}
	}
	return &Server{
		config: c, params: p, maxBody: cmp.Or(int64(c.MaxBodyBytes), p.MaxBodyBytes), metrics: newMetrics(p.Scope.Meters()), endpoints: newEndpoints(),
		tracer: p.Scope.Tracer("server/edge/extproc"),
	}
}

// priority is that of the objective that a request names; 0 without one.
func (s *Server) priority(objective string) int {
	if objective == "" {
		return 0
	}
	if priority, ok := s.config.Objectives[objective]; ok || s.params.Objectives == nil {
		return priority
	}
	priority, _ := s.params.Objectives.Priority(objective)
	return priority
}

// Process serves one HTTP request of a gateway. The booking made for it ends with the stream at the latest, unless the answer is not seen.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) (err error) {
	s.metrics.open(1)
	defer s.metrics.open(-1)
	x := newExchange(s, stream)
	defer func() {
		if v := recover(); v != nil {
			s.params.Scope.Log().Error("a request of a gateway panicked", "panic", v, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return x.run()
}

// Close releases the bookings of answers that are not seen. It must be called once only, when no stream is left.
func (s *Server) Close() { s.partings.close() }

// Senders of the streams are gateways: who sent the HTTP request is known by its headers.

// Known reports that streams are admitted by Admit; it implements guard.Senders.
func (s *Server) Known(method string) bool {
	return method == extproc.ExternalProcessor_Process_FullMethodName
}

// Admit admits each gateway: the sender of the HTTP request is identified by its headers. It implements guard.Senders.
func (s *Server) Admit(context.Context, string, metadata.MD) (*caller.Caller, error) {
	return caller.Anonymous(), nil
}
