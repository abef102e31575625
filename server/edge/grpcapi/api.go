package grpcapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// Router answers inference calls; *router.Router does.
type Router interface {
	Serve(ctx context.Context, call *router.Call, to router.Sink) error
	Stored(ctx context.Context, call *router.Call, id string, to router.Sink) error
	Adapter(ctx context.Context, call *router.Call, to router.Sink) error
	Realtime(ctx context.Context, call *router.Call, model string, up router.Upgrade) error
	Models() []byte
	Model(id string) ([]byte, error)
	Choose(ctx context.Context, q *router.Question) (*router.Answer, error)
	Encode(ctx context.Context, q *router.Question) (*router.Answer, error)
	// Claimed reports whether a question of this name has a live booking here, or is getting one.
	Claimed(tenant, name string) bool
}

// Lifecycle takes the reports about a reservation; *chooser.Chooser does.
type Lifecycle interface {
	PrefillCompleted(key load.Key) load.Outcome
	ReportProgress(key load.Key, outputTokens int) load.Outcome
	Renew(key load.Key) load.Outcome
	Finish(key load.Key, result chooser.Result) load.Outcome
}

// Links are templates of URLs of other programs; an empty one means that there is none.
type Links struct {
	// Trace is of a trace, with {trace_id}.
	Trace string
	// Dashboard is of a dashboard, with {model} and {replica}.
	Dashboard string
}

// Params are the parts that the services expose. The fields before Stats are required.
type Params struct {
	Router    Router
	Lifecycle Lifecycle
	Book      *load.Book
	Registry  *registry.Registry
	Decisions *decisionlog.Log
	Tokens    *tokenizer.Pool
	// Choice gives the configuration that ListPolicies shows.
	Choice func() chooser.Config
	// Settings implements ConfigService; nil if settings cannot be changed.
	Settings func() Settings

	// Stats gives what a rank's engine reported last; nil when engines are not asked.
	Stats func(replica.Slot) (enginestats.Stats, bool)
	// Feed gives the state of a rank's event feed; nil means none publishes events.
	Feed func(replica.Slot) kvblock.FeedState
	// Version, Ready (why the router should get no requests now), Index, Feeds, Rates, Waiting (requests in the hold queue),
	// Breaker, History and Traces are what the router and its parts report of themselves; nil ones report nothing.
	Version string
	Ready   func() error
	Index   func() kvindex.Stats
	Feeds   func() []kvevents.Status
	Rates   func() []chooser.Rate
	Waiting func() int
	Breaker func(replica.ID) breaker.State
	History *history.History
	Traces  *history.Traces
	// Links are where operators see more, as templates of URLs.
	Links Links
	// Tracer records dry runs that no other span is above of; nil records none.
	Tracer trace.Tracer
	// Peers are the other routers of the fleet; nil without a fleet.
	Peers *forward.Fleet
	// Callers identifies callers; nil makes one of the Config. Its files are not read again.
	Callers *callers.Callers
	// Audit takes what changes the fleet, refusals and reads of others' data; nil takes none.
	Audit *audit.Log
	// Registration lets callers without a key register replicas.
	Registration bool
	// Forward lets InferenceService.Forward pass on paths that the router does not know.
	Forward bool
	Log     *slog.Logger
	Meter   metric.MeterProvider
}

// API is the services. Make one with New.
type API struct {
	Params
	conf atomic.Pointer[Config]
	// tenantHeader is the header of gateways, tenantKey the same as metadata have it.
	tenantHeader, tenantKey string
	anonymous               *caller.Caller
	began                   time.Time
	rules                   protovalidate.Validator
	metrics                 *metrics
	methods                 map[string]*methodInfo
	// life ends with Leave; it is no request's context.
	life context.Context
	// Leave ends the streams that would otherwise never end (watches), so that a shutdown need not
	// wait for them. Calls that answer are not affected. It is idempotent.
	Leave context.CancelFunc
}

// New makes an API. c must be valid.
func New(c Config, p Params) (*API, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Stats == nil {
		p.Stats = func(replica.Slot) (enginestats.Stats, bool) { return enginestats.Stats{}, false }
	}
	if p.Feed == nil {
		p.Feed = func(replica.Slot) kvblock.FeedState { return kvblock.FeedNone }
	}
	if p.Callers == nil {
		var err error
		if p.Callers, err = callers.New(c.Callers(), callers.Params{Log: p.Log, Meter: p.Meter}); err != nil {
			return nil, err
		}
	}
	p.reportNothing()
	methods, err := readMethods()
	if err != nil {
		return nil, err
	}
	a := &API{Params: p, tenantHeader: http.CanonicalHeaderKey(c.TenantHeader), tenantKey: strings.ToLower(c.TenantHeader), anonymous: caller.Anonymous(), began: time.Now(), metrics: newMetrics(p.Meter), methods: methods}
	a.conf.Store(&c)
	a.life, a.Leave = context.WithCancel(context.Background())
	if a.rules, err = protovalidate.New(protovalidate.WithMessageDescriptors(a.inputs()...)); err != nil {
		return nil, err
	}
	return a, nil
}

// reportNothing fills in what reports nothing.
func (p *Params) reportNothing() {
	orZero(&p.Ready)
	orZero(&p.Index)
	orZero(&p.Feeds)
	orZero(&p.Rates)
	orZero(&p.Waiting)
	if p.Breaker == nil {
		p.Breaker = func(replica.ID) breaker.State { return breaker.Closed }
	}
	if p.History == nil {
		p.History = history.New()
	}
	if p.Traces == nil {
		p.Traces = &history.Traces{}
	}
	if p.Tracer == nil {
		p.Tracer = noop.Tracer{}
	}
}

func orZero[T any](f *func() T) {
	if *f == nil {
		*f = func() (none T) { return none }
	}
}

// UseOverrides replaces the settings that are read at each call.
func (a *API) UseOverrides(c Config) { a.conf.Store(&c) }

// Register adds the services to a grpc.Server or to the REST surface.
func (a *API) Register(to grpc.ServiceRegistrar) {
	kvpilotv1.RegisterInferenceServiceServer(to, &inference{api: a})
	kvpilotv1.RegisterRoutingServiceServer(to, &routing{api: a})
	kvpilotv1.RegisterReplicaServiceServer(to, &replicas{api: a})
	kvpilotv1.RegisterConfigServiceServer(to, &settings{api: a})
	kvpilotv1.RegisterRouterServiceServer(to, &status{api: a})
}

// lasting is the context of a stream that ends with the router.
func (a *API) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// endOnLeave ends a call that receives messages when the router leaves. The caller calls stop when the call has ended.
func (a *API) endOnLeave(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(a.life, func() {
		if e := httpcall.From(ctx); e != nil {
			if e.Live != nil {
				e.Live.End(shuttingDown())
			}
		} else if c := guard.FromContext(ctx); c != nil {
			c.End(shuttingDown())
		}
	})
}

// untilLeave runs a stream that is none of the contract's and reads messages, until it ends or the router leaves.
func (a *API) untilLeave(run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-a.life.Done(): // run ends with its stream
		return shuttingDown()
	}
}

func shuttingDown() *apierror.Error {
	return apierror.New(apierror.ShuttingDown, "the router is stopping", nil)
}

// stopped is how a lasting stream ends: its caller left, or the router does.
func stopped(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return shuttingDown()
}

// methodInfo is what the interceptor needs to know of an RPC.
type methodInfo struct {
	input protoreflect.MessageDescriptor
	// path is the one of its first REST route; empty when that is no POST.
	path string
	// raw requests are HttpBody: no rules apply, and the router logs the call.
	raw bool
	// roles are those of which a caller needs one.
	roles caller.Roles
	// each message of the stream is answered separately, a broken rule too: the handler applies them.
	each bool
}

// readMethods lists the contract's RPCs by full name.
func readMethods() (map[string]*methodInfo, error) {
	list := map[string]*methodInfo{}
	roles := methodRoles()
	for _, file := range []protoreflect.FileDescriptor{
		kvpilotv1.File_kvpilot_v1_inference_proto, kvpilotv1.File_kvpilot_v1_routing_proto, kvpilotv1.File_kvpilot_v1_replica_proto,
		kvpilotv1.File_kvpilot_v1_config_proto, kvpilotv1.File_kvpilot_v1_router_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				rpc := service.Methods().Get(j)
				name := "/" + string(service.FullName()) + "/" + string(rpc.Name())
				if roles[name] == 0 {
					return nil, fmt.Errorf("%s has no role in methodRoles and could not be called", name)
				}
				rule, _ := proto.GetExtension(rpc.Options(), annotations.E_Http).(*annotations.HttpRule)
				list[name] = &methodInfo{
					path:  rule.GetPost(),
					roles: roles[name], input: rpc.Input(), raw: rpc.Input().FullName() == "google.api.HttpBody",
				}
			}
		}
	}
	list[kvpilotv1.RoutingService_TrackReservation_FullMethodName].each = true
	return list, nil
}

// inputs are the messages with rules that are compiled at start, so that no request waits for it.
func (a *API) inputs() []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	for _, m := range a.methods {
		if !m.raw {
			list = append(list, m.input)
		}
	}
	return list
}
