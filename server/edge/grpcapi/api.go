package grpcapi

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	sharing "github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// Router answers inference calls and questions; *router.Router does.
type Router interface {
	answering
	choosing
}

// Chooser is the part of the choice that the services need; *chooser.Chooser does it.
type Chooser interface {
	choice
	rates
	programming
}

// Records are what the router remembers of requests.
type Records struct {
	Decisions *decisionlog.Log
	History   *history.History
	Traces    *history.Traces
	Splits    *sharing.Splits
}

// Params are the parts that the services expose. All but the optional ones are required.
type Params struct {
	Router    Router
	Lifecycle Lifecycle
	Chooser   Chooser
	Ranks     Ranks
	Records
	Tokens   *tokenizer.Pool
	Settings SettingsOwner
	Health   Health
	Version  string
	// Links are where operators see more, as templates of URLs.
	Links Links
	// Registration lets callers without a key register replicas.
	Registration bool
	// Forward lets InferenceService.Forward pass on paths that the router does not know.
	Forward bool

	// Peers are the other routers of the fleet; nil without a fleet.
	Peers *forward.Fleet
	// Callers identifies callers; nil makes one of the Config. Its files are not read again.
	Callers *callers.Callers
	// Audit takes changes of the fleet, refusals and reads of others' data; nil takes none.
	Audit *audit.Log
	// Tracer records dry runs that no other span is above of; nil records none.
	Scope scope.Scope
}

// API is the services. Make one with New.
type API struct {
	*interceptors
	conf      atomic.Pointer[Config]
	inference *inference
	routing   *routing
	replicas  *replicas
	settings  *settings
	status    *status
}

// New makes an API. c must be valid.
func New(c Config, p Params) (*API, error) {
	if p.Callers == nil {
		var err error
		if p.Callers, err = callers.New(c.Callers(), callers.Params{Scope: p.Scope}); err != nil {
			return nil, err
		}
	}
	methods, err := readMethods()
	if err != nil {
		return nil, err
	}
	validator, err := protovalidate.New(protovalidate.WithMessageDescriptors(inputs(methods)...))
	if err != nil {
		return nil, err
	}
	a, m, who := &API{}, newMetrics(p.Scope.Meters()), &senders{callers: p.Callers, anonymous: caller.Anonymous()}
	a.conf.Store(&c)
	header := http.CanonicalHeaderKey(c.TenantHeader)
	a.interceptors = &interceptors{
		admission: &admission{callers: p.Callers, methods: methods, tenantHeader: header, tenantKey: strings.ToLower(header), audit: p.Audit, metrics: m},
		life:      newLife(), senders: who, rules: rules{validator, m}, log: p.Scope.Log(),
	}
	a.serve(p, &others{peers: p.Peers, senders: who, pools: pools{p.Ranks.Registry}, tenantHeader: header})
	return a, nil
}

// serve makes the services.
func (a *API) serve(p Params, fleet *others) {
	who, audited, asked := a.senders, trail{a.senders, p.Audit}, calls{a.senders, overrides{&a.conf}}
	a.inference = newInference(p.Router, asked, a.admission, audited, &a.conf, p.Forward)
	a.routing = &routing{
		choices:      &choices{router: p.Router, calls: asked, admission: a.admission, others: fleet, metrics: a.metrics, tracer: p.Scope.Tracer("server/edge/grpcapi")},
		tokens:       &tokens{router: p.Router, calls: asked, pools: fleet.pools, pool: p.Tokens},
		reservations: &reservations{lifecycle: p.Lifecycle, book: p.Ranks.Book, decisions: p.Decisions, senders: who, others: fleet, rules: a.rules, life: a.life, metrics: a.metrics},
		records:      &records{decisions: p.Decisions, senders: who, others: fleet, trail: audited, life: a.life},
		loads:        &loads{ranks: &p.Ranks, rates: p.Chooser, pools: fleet.pools, others: fleet, trail: audited},
		programs:     &programs{chooser: p.Chooser, pools: fleet.pools, senders: who, others: fleet, trail: audited},
		splits:       &splits{of: p.Splits, senders: who, others: fleet, trail: audited},
		policies:     policies{p.Chooser},
	}
	a.replicas = &replicas{ranks: &p.Ranks, pools: fleet.pools, senders: who, others: fleet, trail: audited, life: a.life, registration: p.Registration}
	a.settings = &settings{owner: p.Settings, senders: who, trail: audited}
	a.status = &status{
		version: p.Version, links: p.Links, began: time.Now(), ranks: &p.Ranks, choice: p.Chooser, health: p.Health, tokens: p.Tokens,
		history: p.History, traces: p.Traces, others: fleet, trail: audited,
	}
}

// UseOverrides replaces the settings that are read at each call.
func (a *API) UseOverrides(c Config) { a.conf.Store(&c) }

// Register adds the services to a grpc.Server or to the REST surface.
func (a *API) Register(to grpc.ServiceRegistrar) {
	kvpilotv1.RegisterInferenceServiceServer(to, a.inference)
	kvpilotv1.RegisterRoutingServiceServer(to, a.routing)
	kvpilotv1.RegisterReplicaServiceServer(to, a.replicas)
	kvpilotv1.RegisterConfigServiceServer(to, a.settings)
	kvpilotv1.RegisterRouterServiceServer(to, a.status)
}

// routing is RoutingService: it decides without answering.
type routing struct {
	kvpilotv1.UnsafeRoutingServiceServer
	*choices
	*tokens
	*reservations
	*records
	*loads
	*programs
	*splits
	policies
}

// RoutingOptions reads the options of the choice from a request's headers, as far as callers may set them.
func (a *API) RoutingOptions(h http.Header) (chooser.Options, error) {
	return overrides{&a.conf}.fromHeader(h)
}
