package router

import (
	"context"
	"hash/maphash"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/answer"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Params are the parts that a Router joins. All but Decider, Origin, Fleet, Bodies, Limits, Guesses, PerModel, Count, Log, Meter and Tracer are required.
type Params struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	Chooser  *chooser.Chooser
	// Decider decides and books; nil: Chooser does.
	Decider  attempt.Decider
	Upstream *upstream.Client
	Breaker  *breaker.Breaker
	Budget   *retry.Budget
	Pins     *pins.Pins
	// Fleet keeps pins where the other routers find them; nil: there are none.
	Fleet intake.FleetPins
	// Bodies remembers what was read from bodies; nil remembers nothing.
	Bodies *openai.Memory
	// Limits keeps tenants to their limits; nil has none.
	Limits quota.Owner
	intake.PerModel
	// Attempts bounds the replicas that one request is tried on.
	Attempts int
	// Lease is the life of a reservation handed to an external caller that names none.
	Lease time.Duration
	// Guesses notes where prompts go that are known by their text only; nil notes nothing.
	Guesses attempt.Guesses
	// Origin begins the ids of decisions and reservations, with hexadecimal digits that name this router in its fleet; empty: none.
	Origin string
	// Count counts requests by their ends; nil counts none.
	Count attempt.Counter

	Scope scope.Scope
}

// Router answers calls. It is safe for concurrent use.
//
// It joins the steps of a call: intake makes a request of it, attempts choose replicas and send it, answers give the client the answer, and
// ends accounts for the end.
type Router struct {
	*advisor
	direct.Catalog

	inFlight metric.Int64UpDownCounter
	intake   *intake.Intake
	attempts *attempt.Dispatcher
	answers  *answer.Answers
	ends     *requestEnds
	stored   *direct.Stored
	adapters *direct.Adapters
	realtime *direct.Realtime
	handoffs *handoffs
	leaving  leaving
}

// New makes a Router.
func New(c intake.Config, p Params) *Router {
	if p.Decider == nil {
		p.Decider = p.Chooser
	}
	m, log := newMetrics(p.Scope.Meters()), p.Scope.Log()
	r := &Router{Catalog: direct.NewCatalog(p.Registry), inFlight: m.InFlight}
	r.intake = intake.New(c, p.Attempts, intake.Params{
		Registry: p.Registry, Tokens: p.Tokens, Upstream: p.Upstream, Policies: p.Chooser, Pins: p.Pins, Fleet: p.Fleet, Bodies: p.Bodies,
		Limits: p.Limits, PerModel: p.PerModel, Origin: p.Origin, Scope: p.Scope,
	})
	r.attempts = attempt.New(attempt.Params{
		Registry: p.Registry, Tokens: p.Tokens, Decider: p.Decider, Upstream: p.Upstream, Breaker: p.Breaker, Budget: p.Budget, Guesses: p.Guesses,
		Count: p.Count, Intake: r.intake, Scope: p.Scope,
	})
	r.answers = answer.New(r.intake, r.attempts, p.Scope)
	r.ends = &requestEnds{metrics: m, count: p.Count, log: log}
	r.stored = direct.NewStored(p.Registry, p.Breaker, r.intake, r.attempts, r.answers)
	r.adapters = direct.NewAdapters(p.Registry, p.Upstream, p.Chooser)
	r.realtime = direct.NewRealtime(r.intake, r.attempts, p.Upstream)
	r.handoffs = &handoffs{intake: r.intake, attempts: r.attempts, registry: p.Registry, breaker: p.Breaker, ends: r.ends, inFlight: m.InFlight}
	r.advisor = &advisor{intake: r.intake, attempts: r.attempts, ends: r.ends, metrics: m, chooser: p.Chooser, lease: p.Lease, claims: claims{seed: maphash.MakeSeed()}}
	return r
}

// Update puts new settings in force, for requests that begin from now on. UnknownRoutes is the surfaces' and stays.
func (r *Router) Update(c intake.Config, attempts int) error {
	if err := c.Validate(); err != nil {
		return err
	}
	r.intake.Update(c, attempts)
	return nil
}

// Serve answers one call through to. An error is an *apierror.Error; it means that the Sink was
// given nothing, or that the answer broke after its first byte.
func (r *Router) Serve(ctx context.Context, call *intake.Call, to intake.Sink) error {
	return r.account(ctx, call, to, func(rq *intake.Request, d *attempt.Delivery) error {
		rq.Story.Admit(call.Received)
		rq.Standby.To = to
		if err := r.intake.Prepare(ctx, rq); err != nil {
			return err
		}
		rq.Await(to)
		ctx, stop := r.leaving.endWith(ctx, rq)
		defer stop()
		return r.answer(ctx, rq, d)
	})
}

// Leave ends the streams whose clients continue them at another router. Other calls are not affected. It is idempotent.
func (r *Router) Leave() { r.leaving.leave() }

// account has serve answer a call, and accounts for it, however it ends.
func (r *Router) account(ctx context.Context, call *intake.Call, to intake.Sink, serve func(*intake.Request, *attempt.Delivery) error) (err error) {
	rq, d := r.intake.NewRequest(ctx, call), &attempt.Delivery{To: to}
	r.inFlight.Add(context.Background(), 1)
	defer func() { // also when a handler panics
		r.attempts.Blame.Conclude(rq, d)
		settle(r.intake.Limits, rq, d, err)
		rq.Enc.Release()
	}()
	if err = r.attempts.Blame.Sendable(call); err == nil {
		err = serve(rq, d)
	}
	r.attempts.Blame.Conclude(rq, d)
	r.ends.finish(ctx, rq, d, err)
	return err
}

// answer tries replicas until one has answered or the request must end.
func (r *Router) answer(ctx context.Context, rq *intake.Request, d *attempt.Delivery) error {
	t := attempt.NewTries(rq)
	t.Ask.Copier = r.attempts.Copier.Of(rq)
	if rq.Events != nil {
		if over, err := r.answers.TakeOver(ctx, rq, t, d); over || err != nil {
			return err
		}
	}
	f := r.attempts.Retries.Run(ctx, rq, t, d, func() *attempt.Failure { return r.answers.Try(ctx, rq, t, d) })
	if f == nil {
		return nil
	}
	if given, err := r.answers.Blanks.Give(ctx, rq, t, d); given {
		return err
	}
	return f.Public
}

// HandOff makes the choice that Serve would make for the call, and books it, without sending anything. A call without a body, and one
// about a stored response, is for any replica that can take it. An error is an *apierror.Error.
func (r *Router) HandOff(ctx context.Context, call *intake.Call, sight Sight) (*Handoff, error) {
	return r.handoffs.make(ctx, call, sight)
}

// Realtime makes a WebSocket between the client and one replica and passes its bytes on, until one of the two leaves, nothing
// passes for the configured time, or the surface ends it. model is the handshake's; without one it is the only model, or the
// first that can serve. An error is an *apierror.Error, as that of Serve.
func (r *Router) Realtime(ctx context.Context, call *intake.Call, model string, up direct.Upgrade) error {
	return r.account(ctx, call, nil, func(rq *intake.Request, d *attempt.Delivery) error {
		rq.Story.Admit(call.Received)
		return r.realtime.Serve(ctx, rq, d, model, up)
	})
}

// Stored answers a call about a stored response (GET, DELETE or cancel of /v1/responses/{id}):
// it can only be answered by the replica that has it. One of an unknown replica is looked for on
// every replica that takes requests.
func (r *Router) Stored(ctx context.Context, call *intake.Call, id string, to intake.Sink) error {
	return r.account(ctx, call, to, func(rq *intake.Request, d *attempt.Delivery) error {
		if err := r.intake.Limits.Enter(rq); err != nil {
			return err
		}
		return r.stored.Serve(ctx, rq, id, d)
	})
}

// Adapter answers a call that loads or unloads a LoRA adapter: every replica of the pool is asked, or the one
// that the call is pinned to. The answer is that of the engines when all agree, else the first refusal.
func (r *Router) Adapter(ctx context.Context, call *intake.Call, to intake.Sink) error {
	return r.account(ctx, call, to, func(rq *intake.Request, d *attempt.Delivery) error { return r.adapters.Serve(ctx, rq, d) })
}
