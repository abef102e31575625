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

// Params are the parts that a Router joins. All but ChooseRank, Origin, Fleet, Bodies, Limits, Believe, Count, Log, Meter and Tracer are required.
type Params struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	Chooser  *chooser.Chooser
	// ChooseRank decides and books, by Chooser or by another router's; nil: Chooser does.
	ChooseRank func(context.Context, *chooser.Request) (*chooser.Choice, error)
	Upstream   *upstream.Client
	Breaker    *breaker.Breaker
	Budget     *retry.Budget
	Pins       *pins.Pins
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

// Router answers calls. It is safe for concurrent use.
type Router struct {
	Params
	set     atomic.Pointer[settings]
	tracer  trace.Tracer
	metrics *metrics
	claims  claims
	ids     idsSupport
	poison  *poison.Memory
	// pausable are the replicas with answers that are watched.
	pausable pausable
}

// New makes a Router.
func New(c Config, p Params) (*Router, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Tracer == nil {
		p.Tracer = noop.NewTracerProvider()
	}
	if p.ChooseRank == nil {
		p.ChooseRank = p.Chooser.Choose
	}
	m, err := newMetrics(p.Meter)
	if err != nil {
		return nil, err
	}
	r := &Router{Params: p, tracer: p.Tracer.Tracer("github.com/kvpilot/kvpilot/server/route/router", trace.WithSchemaURL(span.SchemaURL)), metrics: m, claims: claims{seed: maphash.MakeSeed()}, poison: poison.New(nil)}
	m.remembered(p.Meter, r.poison.Size)
	r.set.Store(newSettings(c, p.Attempts))
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
		rq.noteAdmission()
		if err := r.prepare(ctx, rq); err != nil {
			return err
		}
		rq.await(to)
		return r.answer(ctx, rq, d)
	})
}

// account has serve answer a call, and accounts for it, however it ends.
func (r *Router) account(ctx context.Context, call *Call, to Sink, serve func(*request, *delivery) error) (err error) {
	rq, d := r.newRequest(ctx, call), &delivery{to: to}
	r.metrics.begin()
	defer func() { // also when a handler panics
		r.conclude(rq, d)
		r.settleLimits(rq, d, err)
		rq.enc.Release()
	}()
	if err = r.sendable(call); err == nil {
		err = serve(rq, d)
	}
	r.conclude(rq, d)
	r.finish(ctx, rq, d, err)
	return err
}

// sendable reports why no replica can be sent the call, before anything is done for it.
func (r *Router) sendable(call *Call) error {
	path, method := cmp.Or(call.Path, "/"), cmp.Or(call.Method, http.MethodPost)
	if err := upstream.CheckLine(method, path, call.RawQuery); err != nil {
		r.metrics.faults.add(retry.Find(retry.Unsendable, retry.Origin{}))
		return unsendable(err)
	}
	return nil
}

// prepare learns what the choice needs: limit → read → pool → place → tokenize → book.
func (r *Router) prepare(ctx context.Context, rq *request) error {
	if err := r.enter(rq); err != nil {
		return err
	}
	read := r.read
	if rq.call.Route.TakesForm() {
		read = r.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	r.capPriority(rq)
	if err := r.isolate(rq); err != nil {
		return err
	}
	if err := r.findPool(rq); err != nil {
		return err
	}
	if err := r.denyOld(rq); err != nil {
		return err
	}
	if err := r.place(ctx, rq); err != nil {
		return err
	}
	if err := r.tokenize(ctx, rq); err != nil {
		return err
	}
	return r.book(rq, rq.parsed.MaxTokens, false)
}

// answer tries replicas, one after the other, until one has answered or the request must end.
func (r *Router) answer(ctx context.Context, rq *request, d *delivery) error {
	r.Budget.Deposit()
	for t := r.newTries(rq); ; {
		f := r.attempt(ctx, rq, t, d)
		switch r.judge(ctx, rq, t, d, f) {
		case done:
			return nil
		case failed:
			if given, err := r.giveBlank(ctx, rq, t, d); given {
				return err
			}
			return f.public
		case elsewhere:
			t.next(d.attempt, f)
		}
	}
}

// attempt makes one attempt: choose, send, deliver, release. It returns nil when the client has the whole answer.
func (r *Router) attempt(ctx context.Context, rq *request, t *tries, d *delivery) (f *failure) {
	if _, f = r.open(ctx, rq, t, d); f != nil {
		return f
	}
	return r.deliver(ctx, rq, t, d)
}

// followUp is what follows an attempt.
type followUp uint8

const (
	done      followUp = iota // the client has the whole answer
	elsewhere                 // another replica is tried
	failed                    // the client gets the error
)

// judge decides what follows an attempt. Another replica is tried only before the client's first byte, only after faults that
// another replica may not have, within the attempts and the budget. The budget keeps a fleet in trouble from being asked
// twice for everything; the first retry after a replica is gone, or was used although its breaker is open, is free.
func (r *Router) judge(ctx context.Context, rq *request, t *tries, d *delivery, f *failure) followUp {
	switch {
	case f == nil:
		return done
	case f.unchosen, d.begun, ctx.Err() != nil, !f.outcome.Retryable(), t.tried()+1 >= rq.set.attempts:
		return failed
	case rq.call.Options.Pinned != "", rq.holder != "", rq.upload != nil && rq.upload.spent: // no other replica can serve it
		return failed
	case !r.worthRetry(rq, t, d, f):
		return failed
	case t.tried() == 0 && (f.outcome.Gone() || d.attempt.forced):
	case !r.withdraw(rq, d, f):
		return failed
	}
	r.noteRetry(ctx, f)
	r.Log.Info("retrying on another replica", "request", rq.call.RequestID, "replica", string(d.attempt.choice.Replica.ID), "outcome", f.outcome.String(), "cause", d.doubts.cause.String(), "error", f.public)
	return elsewhere
}

// noteRetry counts a retry after f, and leaves it on the request's span.
func (r *Router) noteRetry(ctx context.Context, f *failure) {
	r.metrics.retried(f.outcome)
	r.countRetry()
	span.Note(ctx, span.EventRetry, span.Reason.String(f.outcome.String()))
}

// read takes from the body what routing needs.
func (r *Router) read(rq *request) error {
	began := time.Now()
	params := openai.Params{
		Route: rq.call.Route, Header: rq.call.Header, SessionHeaders: rq.set.sessions,
		Body: rq.call.Body, Truncated: rq.truncated(), Limits: openai.Limits{Members: rq.set.MaxMembers, Items: rq.set.MaxMessages},
	}
	req, err := r.Bodies.Read(params)
	if err == nil && !rq.call.Steers {
		req, err = r.unsteered(rq, req, params)
	}
	if err != nil {
		refused := badRequest(err)
		rq.noteRead(began, refused)
		return refused
	}
	rq.parsed, rq.body = req, req.Body
	rq.noteRead(began, nil)
	return nil
}

// findPool finds the replicas that serve the model. A body without a model means the one that each
// engine would take.
func (r *Router) findPool(rq *request) error {
	snapshot := r.Registry.Snapshot()
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
func (r *Router) undecided(ctx context.Context, rq *request, t *tries, err error) error {
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
