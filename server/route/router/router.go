package router

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/route/standby"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// PerModel are parts that matter to the models that the settings name.
type PerModel struct {
	// Splits share the requests for models between sides; nil splits none.
	Splits *splits.Splits
	// Standby holds requests for models that are scaled from zero; nil holds none.
	Standby *standby.Room
}

// Params are the parts that a Router joins. All but Decider, Origin, Fleet, Bodies, Limits, Guesses, PerModel, Count, Log, Meter and Tracer are required.
type Params struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	Chooser  *chooser.Chooser
	// Decider decides and books; nil: Chooser does.
	Decider  Decider
	Upstream *upstream.Client
	Breaker  *breaker.Breaker
	Budget   *retry.Budget
	Pins     *pins.Pins
	// Fleet keeps pins where the other routers find them; nil: there are none.
	Fleet FleetPins
	// Bodies remembers what was read from bodies; nil remembers nothing.
	Bodies *openai.Memory
	// Limits keeps tenants to their limits; nil has none.
	Limits quota.Owner
	PerModel
	// Attempts bounds the replicas that one request is tried on.
	Attempts int
	// Lease is the life of a reservation handed to an external caller that names none.
	Lease time.Duration
	// Guesses notes where prompts go that are known by their text only; nil notes nothing.
	Guesses Guesses
	// Origin begins the ids of decisions and reservations, with hexadecimal digits that name this router in its fleet; empty: none.
	Origin string
	// Count counts requests by their ends; nil counts none.
	Count Counter

	Log    *slog.Logger
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
}

// Router answers calls. It is safe for concurrent use.
//
// It joins the parts that a call passes: intake makes a request of it, attempts choose replicas and send it, answers give the client
// what they answer, retries decide what follows an attempt, and ends accounts for the end.
type Router struct {
	*advisor

	set      atomic.Pointer[settings]
	registry *registry.Registry
	inFlight metric.Int64UpDownCounter
	intake   *intake
	limits   *accounts
	blame    *blame
	retries  *retrier
	answers  *answers
	copier   *copier
	ends     *requestEnds
	stored   *storedCalls
	adapters *adapters
	realtime *realtime
	handoffs *handoffs
	leaving  leaving
}

// New makes a Router.
func New(c Config, p Params) (*Router, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Tracer == nil {
		p.Tracer = noop.NewTracerProvider()
	}
	if p.Decider == nil {
		p.Decider = p.Chooser
	}
	m, err := newMetrics(p.Meter, p.Log)
	if err != nil {
		return nil, err
	}
	known := poison.New()
	m.remembered(p.Meter, known.Size)
	r := &Router{registry: p.Registry, inFlight: m.inFlight, limits: &accounts{owner: p.Limits}}
	r.set.Store(newSettings(c, p.Attempts))
	responses := &responses{pins: p.Pins, fleet: p.Fleet, upstream: p.Upstream}
	standby := standbys{p.Standby}
	r.intake = &intake{
		set: &r.set, chooser: p.Chooser, limits: r.limits,
		reader:  reader{bodies: p.Bodies, steering: &m.steering},
		sides:   sides{registry: p.Registry, splits: p.Splits, standby: standby},
		places:  places{registry: p.Registry, standby: standby, responses: responses},
		encoder: encoder{p.Tokens},
		faults:  &m.faults, prefix: p.Origin, tracer: p.Tracer.Tracer("github.com/kvpilot/kvpilot/server/route/router", trace.WithSchemaURL(span.SchemaURL)),
	}
	r.blame = &blame{registry: p.Registry, breaker: p.Breaker, poison: known, faults: &m.faults}
	r.retries = &retrier{blame: r.blame, budget: p.Budget, retried: &m.retries, count: p.Count, log: p.Log}
	r.ends = &requestEnds{metrics: m, count: p.Count, log: p.Log}
	refused := refusals{breaker: p.Breaker}
	picker := &picker{registry: p.Registry, decider: p.Decider, breaker: p.Breaker, tokens: p.Tokens, guesses: p.Guesses, keyless: &m.keyless, standby: standby}
	sender := &sender{upstream: p.Upstream, registry: p.Registry, tokens: p.Tokens, log: p.Log}
	attempts := &dispatcher{
		picker: picker, engines: sender,
		legs:     &splitter{watcher: watcher{legTiming{legPatience, blockLease}, p.Registry}, bootstraps: bootstraps{p.Upstream}, engines: sender, blame: r.blame, prefills: &m.legs.prefills, transfers: &m.legs.transfers, pinned: m.legs.pinned, log: p.Log},
		refusals: refused, blame: r.blame, tokens: p.Tokens, responses: responses, aborted: m.aborted, stopper: stopper{p.Upstream, &m.resumes, p.Log},
	}
	r.answers = &answers{
		attempts: attempts, blame: r.blame, limits: r.limits, responses: responses, blanks: blanks{empties: &m.empties, limits: r.limits}, interrupted: &m.broken,
		resumer: &resumer{attempts: attempts, retries: r.retries, tokens: p.Tokens, results: &m.resumes, interrupted: &m.broken, log: p.Log},
	}
	r.copier = &copier{upstream: p.Upstream, registry: p.Registry, patience: copyPatience, results: &m.copies, log: p.Log}
	r.stored = &storedCalls{registry: p.Registry, breaker: p.Breaker, responses: responses, limits: r.limits, attempts: attempts, answers: r.answers}
	r.adapters = &adapters{registry: p.Registry, upstream: p.Upstream, record: p.Chooser}
	r.realtime = &realtime{intake: r.intake, retries: r.retries, attempts: attempts, refusals: refused, blame: r.blame, upstream: p.Upstream}
	r.handoffs = &handoffs{
		intake: r.intake, attempts: attempts, limits: r.limits, blame: r.blame, responses: responses, breaker: p.Breaker, ends: r.ends, inFlight: m.inFlight,
	}
	r.advisor = &advisor{intake: r.intake, picker: picker, limits: r.limits, ends: r.ends, metrics: m, chooser: p.Chooser, lease: p.Lease, claims: claims{seed: maphash.MakeSeed()}}
	return r, nil
}

// Update puts new settings in force, for requests that begin from now on. UnknownRoutes is the surfaces' and stays.
func (r *Router) Update(c Config, attempts int) error {
	if err := c.Validate(); err != nil {
		return err
	}
	r.set.Store(newSettings(c, attempts))
	return nil
}

// Serve answers one call through to. An error is an *apierror.Error; it means that the Sink was
// given nothing, or that the answer broke after its first byte.
func (r *Router) Serve(ctx context.Context, call *Call, to Sink) error {
	return r.account(ctx, call, to, func(rq *request, d *delivery) error {
		rq.story.Admit(call.Received)
		rq.standby.to = to
		if err := r.intake.prepare(ctx, rq); err != nil {
			return err
		}
		rq.await(to)
		ctx, stop := r.leaving.endWith(ctx, rq)
		defer stop()
		return r.answer(ctx, rq, d)
	})
}

// Leave ends the streams whose clients continue them at another router. Other calls are not affected. It is idempotent.
func (r *Router) Leave() { r.leaving.leave() }

// account has serve answer a call, and accounts for it, however it ends.
func (r *Router) account(ctx context.Context, call *Call, to Sink, serve func(*request, *delivery) error) (err error) {
	rq, d := r.intake.newRequest(ctx, call), &delivery{to: to}
	r.inFlight.Add(context.Background(), 1)
	defer func() { // also when a handler panics
		r.blame.conclude(rq, d)
		r.limits.settle(rq, d, err)
		rq.enc.Release()
	}()
	if err = r.intake.sendable(call); err == nil {
		err = serve(rq, d)
	}
	r.blame.conclude(rq, d)
	r.ends.finish(ctx, rq, d, err)
	return err
}

// answer tries replicas until one has answered or the request must end.
func (r *Router) answer(ctx context.Context, rq *request, d *delivery) error {
	t := newTries(rq)
	t.ask.Copier = r.copier.of(rq)
	if rq.has != nil {
		if over, err := r.answers.takeOver(ctx, rq, t, d); over || err != nil {
			return err
		}
	}
	f := r.retries.attempt(ctx, rq, t, d, func() *failure { return r.answers.try(ctx, rq, t, d) })
	if f == nil {
		return nil
	}
	if given, err := r.answers.blanks.give(ctx, rq, t, d); given {
		return err
	}
	return f.public
}

// HandOff makes the choice that Serve would make for the call, and books it, without sending anything. A call without a body, and one
// about a stored response, is for any replica that can take it. An error is an *apierror.Error.
func (r *Router) HandOff(ctx context.Context, call *Call, sight Sight) (*Handoff, error) {
	return r.handoffs.make(ctx, call, sight)
}

// Realtime makes a WebSocket between the client and one replica and passes its bytes on, until one of the two leaves, nothing
// passes for the configured time, or the surface ends it. model is the handshake's; without one it is the only model, or the
// first that can serve. An error is an *apierror.Error, as that of Serve.
func (r *Router) Realtime(ctx context.Context, call *Call, model string, up Upgrade) error {
	return r.account(ctx, call, nil, func(rq *request, d *delivery) error {
		rq.story.Admit(call.Received)
		return r.realtime.serve(ctx, rq, d, model, up)
	})
}

// Stored answers a call about a stored response (GET, DELETE or cancel of /v1/responses/{id}):
// it can only be answered by the replica that has it. One of an unknown replica is looked for on
// every replica that takes requests.
func (r *Router) Stored(ctx context.Context, call *Call, id string, to Sink) error {
	return r.account(ctx, call, to, func(rq *request, d *delivery) error {
		if err := r.limits.enter(rq); err != nil {
			return err
		}
		return r.stored.serve(ctx, rq, id, d)
	})
}

// Adapter answers a call that loads or unloads a LoRA adapter: every replica of the pool is asked, or the one
// that the call is pinned to. The answer is that of the engines when all agree, else the first refusal.
func (r *Router) Adapter(ctx context.Context, call *Call, to Sink) error {
	return r.account(ctx, call, to, func(rq *request, d *delivery) error { return r.adapters.serve(ctx, rq, d) })
}

// Models answers GET /v1/models: every name that a replica serves or an alias defines.
func (r *Router) Models() ([]byte, error) { return pools.Cards(r.registry.Snapshot()) }

// Model answers GET /v1/models/{id}.
func (r *Router) Model(id string) ([]byte, error) {
	s := r.registry.Snapshot()
	pool, ok := s.Pool(id)
	if !ok {
		return nil, pools.Unknown(id, s)
	}
	return pools.Card(pool)
}
