package router

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Params are the parts that a Router joins. All but Decider, Origin, Fleet, Bodies, Limits, Believe, Count, Log, Meter and Tracer are required.
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
	// Attempts bounds the replicas that one request is tried on.
	Attempts int
	// Lease is the life of a reservation handed to an external caller that names none.
	Lease time.Duration
	// Believe notes that a rank was sent a prompt which is known by its text only, so that the rest
	// of the conversation follows it; nil notes nothing.
	Believe func(slot replica.Slot, hashes []blockhash.Hash)
	// Origin begins the ids of decisions and reservations, with hexadecimal digits that name this router in its fleet; empty: none.
	Origin string
	// Count counts requests by their ends; nil counts none.
	Count Counter

	Log    *slog.Logger
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
}

// Decider decides and books: a *chooser.Chooser, or the part that asks another router's.
type Decider interface {
	Choose(ctx context.Context, req *chooser.Request) (*chooser.Choice, error)
}

// Router answers calls. It is safe for concurrent use.
//
// It joins the parts that a call passes: intake makes a request of it, attempts choose replicas and send it, answers give the client
// what they answer, retries decide what follows an attempt, and ends accounts for the end.
type Router struct {
	*questions

	set      atomic.Pointer[settings]
	registry *registry.Registry
	inFlight metric.Int64UpDownCounter
	intake   *intake
	limits   *limits
	blame    *blame
	retries  *retries
	answers  *answers
	ends     *ends
	stored   *stored
	adapters *adapters
	realtime *realtime
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
	known := poison.New(nil)
	m.remembered(p.Meter, known.Size)
	r := &Router{registry: p.Registry, inFlight: m.inFlight, limits: &limits{owner: p.Limits}}
	r.set.Store(newSettings(c, p.Attempts))
	responses := &responses{pins: p.Pins, fleet: p.Fleet, upstream: p.Upstream}
	r.intake = &intake{
		set: &r.set, registry: p.Registry, chooser: p.Chooser, tokens: p.Tokens, bodies: p.Bodies, limits: r.limits, responses: responses,
		steering: &m.steering, faults: &m.faults, prefix: p.Origin, tracer: p.Tracer.Tracer("github.com/kvpilot/kvpilot/server/route/router", trace.WithSchemaURL(span.SchemaURL)),
	}
	r.blame = &blame{registry: p.Registry, breaker: p.Breaker, poison: known, faults: &m.faults}
	r.retries = &retries{blame: r.blame, budget: p.Budget, retried: &m.retries, count: p.Count, log: p.Log}
	r.ends = &ends{metrics: m, count: p.Count, log: p.Log}
	picker := &picker{registry: p.Registry, decider: p.Decider, breaker: p.Breaker, tokens: p.Tokens, believe: p.Believe, keyless: &m.keyless}
	attempts := &attempts{
		picker: picker, engines: &engines{upstream: p.Upstream, registry: p.Registry, tokens: p.Tokens, log: p.Log},
		refusals: refusals{breaker: p.Breaker}, blame: r.blame, tokens: p.Tokens, responses: responses, aborted: m.aborted,
	}
	r.answers = &answers{
		attempts: attempts, blame: r.blame, limits: r.limits, responses: responses, empties: &m.empties,
		resumer: &resumer{attempts: attempts, retries: r.retries, tokens: p.Tokens, results: &m.resumes, log: p.Log},
	}
	r.stored = &stored{registry: p.Registry, breaker: p.Breaker, responses: responses, limits: r.limits, answers: r.answers}
	r.adapters = &adapters{registry: p.Registry, upstream: p.Upstream}
	r.realtime = &realtime{intake: r.intake, retries: r.retries, attempts: attempts, upstream: p.Upstream}
	r.questions = &questions{intake: r.intake, picker: picker, limits: r.limits, ends: r.ends, chooser: p.Chooser, lease: p.Lease, claims: claims{seed: maphash.MakeSeed()}}
	return r, nil
}

// settings are what a request keeps from its beginning to its end, also when a reload changes them.
type settings struct {
	Config
	attempts int
	// isolation is nil unless tenants have salts.
	isolation *isolation
	// sessions are the headers that may carry a session.
	sessions []string
}

func newSettings(c Config, attempts int) *settings {
	return &settings{Config: c, attempts: attempts, isolation: newIsolation(c), sessions: c.sessionHeaders()}
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
		rq.story.admit(call.Received)
		if err := r.intake.prepare(ctx, rq); err != nil {
			return err
		}
		rq.await(to)
		return r.answer(ctx, rq, d)
	})
}

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

// sendable reports why no replica can be sent the call, before anything is done for it.
func (in *intake) sendable(call *Call) error {
	path, method := cmp.Or(call.Path, "/"), cmp.Or(call.Method, http.MethodPost)
	if err := upstream.CheckLine(method, path, call.RawQuery); err != nil {
		in.faults.found(retry.Find(retry.Unsendable, retry.Origin{}))
		return unsendable(err)
	}
	return nil
}

// prepare learns what the choice needs: limit → read → pool → place → tokenize → book.
func (in *intake) prepare(ctx context.Context, rq *request) error {
	if err := in.limits.enter(rq); err != nil {
		return err
	}
	read := in.read
	if rq.call.Route.TakesForm() {
		read = in.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	in.limits.capPriority(rq)
	if err := rq.set.isolation.apply(rq); err != nil {
		return err
	}
	if err := in.findPool(rq); err != nil {
		return err
	}
	if err := rq.set.isolation.denyOld(rq); err != nil {
		return err
	}
	if err := in.place(ctx, rq); err != nil {
		return err
	}
	if err := in.tokenize(ctx, rq); err != nil {
		return err
	}
	return in.limits.book(rq, rq.parsed.MaxTokens, false)
}

// answer tries replicas, one after the other, until one has answered or the request must end.
func (r *Router) answer(ctx context.Context, rq *request, d *delivery) error {
	r.retries.budget.Deposit()
	for t := newTries(rq); ; {
		f := r.answers.try(ctx, rq, t, d)
		switch r.retries.judge(ctx, rq, t, d, f) {
		case done:
			return nil
		case failed:
			if given, err := r.answers.giveBlank(ctx, rq, t, d); given {
				return err
			}
			return f.public
		case elsewhere:
			t.next(d.attempt, f)
		}
	}
}

// try makes one attempt: choose, send, deliver, release. It returns nil when the client has the whole answer.
func (an *answers) try(ctx context.Context, rq *request, t *tries, d *delivery) (f *failure) {
	if _, f = an.attempts.open(ctx, rq, t, d); f != nil {
		return f
	}
	return an.deliver(ctx, rq, t, d)
}

// followUp is what follows an attempt.
type followUp uint8

const (
	done      followUp = iota // the client has the whole answer
	elsewhere                 // another replica is tried
	failed                    // the client gets the error
)

// retries decides whether a request is tried on another replica after an attempt.
type retries struct {
	blame   *blame
	budget  *retry.Budget
	retried *counter[retry.Verdict]
	count   Counter
	log     *slog.Logger
}

// judge decides what follows an attempt. Another replica is tried only before the client's first byte, only after faults that
// another replica may not have, within the attempts and the budget. The budget keeps a fleet in trouble from being asked
// twice for everything; the first retry after a replica is gone, or was used although its breaker is open, is free.
func (rt *retries) judge(ctx context.Context, rq *request, t *tries, d *delivery, f *failure) followUp {
	switch {
	case f == nil:
		return done
	case f.unchosen, d.begun, ctx.Err() != nil, !f.outcome.Retryable(), t.tried()+1 >= rq.set.attempts:
		return failed
	case rq.call.Options.Pinned != "", rq.holder != "", rq.upload != nil && rq.upload.spent: // no other replica can serve it
		return failed
	case !rt.worth(rq, t, d, f):
		return failed
	case t.tried() == 0 && (f.outcome.Gone() || d.attempt.forced):
	case !rt.withdraw(rq, d, f):
		return failed
	}
	rt.note(ctx, f)
	rt.log.Info("retrying on another replica", "request", rq.call.RequestID, "replica", string(d.attempt.choice.Replica.ID), "outcome", f.outcome.String(), "cause", d.doubts.cause.String(), "error", f.public)
	return elsewhere
}

// noteRetry counts a retry after f, and leaves it on the request's span.
func (rt *retries) note(ctx context.Context, f *failure) {
	rt.retried.add(f.outcome)
	rt.again()
	span.Note(ctx, span.EventRetry, span.Reason.String(f.outcome.String()))
}

// read takes from the body what routing needs.
func (in *intake) read(rq *request) error {
	began := time.Now()
	params := openai.Params{
		Route: rq.call.Route, Header: rq.call.Header, SessionHeaders: rq.set.sessions,
		Body: rq.call.Body, Truncated: rq.truncated(), Limits: openai.Limits{Members: rq.set.MaxMembers, Items: rq.set.MaxMessages},
	}
	req, err := in.bodies.Read(params)
	if err == nil && !rq.call.Steers {
		req, err = in.unsteered(rq, req, params)
	}
	if err != nil {
		refused := badRequest(err)
		rq.story.read(began, refused)
		return refused
	}
	rq.parsed, rq.body = req, req.Body
	rq.story.read(began, nil)
	return nil
}

// findPool finds the replicas that serve the model. A body without a model means the one that each
// engine would take.
func (in *intake) findPool(rq *request) error {
	snapshot := in.registry.Snapshot()
	name := rq.parsed.Model
	if name == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return apierror.New(apierror.InvalidBody, "the field \"model\" is missing, and the router does not serve exactly one model."+snapshot.KnownModels(), nil, apierror.WithParam("model"))
		}
		rq.usePool(pool)
		return nil
	}
	pool, ok := snapshot.Pool(name)
	if !ok {
		return unknownModel(name, snapshot)
	}
	rq.usePool(pool)
	return nil
}

// unknownModel is a 404, unless a replica that could serve the model has not reported yet.
func unknownModel(name string, s *registry.Snapshot) error {
	if s.Silent() > 0 && len(s.Models()) == 0 || len(s.Replicas) == 0 {
		return apierror.New(apierror.NoReplica, "no replica has reported its models yet", nil, apierror.WithRetryAfter(time.Second))
	}
	return apierror.New(apierror.ModelNotFound, s.UnknownModel(name), nil, apierror.WithParam("model"))
}

// clip shortens text that a caller sent before it is shown again.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return text[:limit] + "…"
}

// undecided turns the chooser's refusal into the caller's error. After a failed attempt, an empty
// pool means that every replica was tried: the attempt's own fault is the truer answer.
func (p *picker) undecided(ctx context.Context, rq *request, t *tries, err error) error {
	var none *chooser.NoReplica
	var refused *chooser.Refused
	switch {
	case errors.As(err, &none):
		if t.failed != nil {
			return t.failed.public
		}
		if full(none.Decision) {
			return apierror.New(apierror.Overloaded, "every replica that may serve the request has reached its limit of requests", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
		}
		return apierror.New(apierror.NoReplica, "no replica of the model `"+clip(rq.pool.Model, 128)+"` can take a request now", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
	case errors.As(err, &refused):
		reason, message := apierror.Overloaded, "the router's queue is full"
		switch refused.Cause {
		case "deadline":
			reason, message = apierror.DeadlineUnreachable, "no replica can answer within the deadline"
		case "target":
			reason, message = apierror.DeadlineUnreachable, missed(t.ask.Options.Targets)
		case "timeout":
			message = "no replica became free in time"
		case "memory":
			message = "no replica had memory for the context of this session in time: the programs that began before it fill the fleet's memory"
		case "shutdown":
			reason, message = apierror.ShuttingDown, "the router is stopping"
		}
		return apierror.New(reason, message, err, apierror.WithRetryAfter(max(refused.RetryAfter, time.Second)))
	case errors.Is(err, chooser.ErrInvalid):
		return apierror.New(apierror.InvalidBody, err.Error(), err)
	case errors.Is(err, chooser.ErrDuplicate):
		return apierror.New(apierror.Conflict, "a reservation with this id exists", err)
	}
	return apierror.From(cause(ctx, err))
}

// cause prefers the reason why the context ended.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// badRequest is the public form of an error of openai.Read.
func badRequest(err error) *apierror.Error {
	var bad *openai.BadRequest
	if !errors.As(err, &bad) {
		return apierror.From(err)
	}
	reason := apierror.InvalidBody
	switch bad.Code {
	case openai.CodeTooLarge:
		reason = apierror.BodyTooLarge
	case openai.CodeMediaType:
		reason = apierror.UnsupportedMediaType
	}
	return apierror.New(reason, bad.Message, nil, apierror.WithParam(bad.Param))
}
