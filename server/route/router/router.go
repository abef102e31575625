package router

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Params are the parts that a Router joins. All but Bodies, Limits, Believe, Log, Meter and Tracer are required.
type Params struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	Chooser  *chooser.Chooser
	Upstream *upstream.Client
	Breaker  *breaker.Breaker
	Budget   *retry.Budget
	Pins     *pins.Pins
	// Bodies remembers what was read from bodies; nil remembers nothing.
	Bodies *openai.Memory
	// Limits keeps tenants to their limits; nil has none.
	Limits quota.Owner
	// Attempts bounds the replicas that one request is tried on.
	Attempts int
	// Lease is the life of a reservation handed to an external caller who names none.
	Lease time.Duration
	// Believe notes that a rank was sent a prompt which is known by its text only, so that the rest
	// of the conversation follows it; nil notes nothing.
	Believe func(slot replica.Slot, hashes []blockhash.Hash)

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
}

// New makes a Router.
func New(c Config, p Params) (*Router, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Tracer == nil {
		p.Tracer = noop.NewTracerProvider()
	}
	m, err := newMetrics(p.Meter)
	if err != nil {
		return nil, err
	}
	r := &Router{Params: p, tracer: p.Tracer.Tracer("github.com/kvpilot/kvpilot/server/route/router", trace.WithSchemaURL(span.SchemaURL)), metrics: m, claims: claims{seed: maphash.MakeSeed()}}
	r.set.Store(newSettings(c, p.Attempts))
	return r, nil
}

// settings are what a request keeps from its beginning to its end, whatever is reloaded meanwhile.
type settings struct {
	Config
	attempts int
	// isolation is nil unless tenants have salts.
	isolation *isolation
}

func newSettings(c Config, attempts int) *settings {
	return &settings{Config: c, attempts: attempts, isolation: newIsolation(c)}
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
	j := r.newJob(ctx, call)
	j.noteAdmission()
	r.metrics.begin()
	var err error
	defer func() { r.settleLimits(j, err) }() // also when a handler panics
	err = r.serve(ctx, j, to)
	r.finish(ctx, j, err)
	return err
}

func (r *Router) serve(ctx context.Context, j *job, to Sink) error {
	if err := r.enter(j); err != nil {
		return err
	}
	read := r.read
	if j.call.Route.TakesForm() {
		read = r.readForm
	}
	if err := read(ctx, j); err != nil {
		return err
	}
	r.capPriority(j)
	if err := r.isolate(j); err != nil {
		return err
	}
	if err := r.findPool(j); err != nil {
		return err
	}
	if err := r.denyOld(j); err != nil {
		return err
	}
	if err := r.place(ctx, j); err != nil {
		return err
	}
	if err := r.tokenize(ctx, j); err != nil {
		return err
	}
	if err := r.book(j, j.req.MaxTokens, false); err != nil {
		return err
	}
	r.follow(j)
	return r.answer(ctx, j, to)
}

// answer tries replicas, one after the other, until one has answered or the request must end.
func (r *Router) answer(ctx context.Context, j *job, to Sink) error {
	r.Budget.Deposit()
	for {
		ask := j.ask(r)
		actx, done := r.movable(ctx, j, ask)
		if err := r.choose(ctx, j, ask); err != nil {
			done(nil)
			return j.undone(ctx, err)
		}
		r.routed(ctx, j)
		f := r.attempt(ctx, actx, j, to)
		done(nil)
		if f == nil {
			return nil
		}
		if f.resumed {
			continue
		}
		if !r.mayRetry(ctx, j, f) {
			return j.told(f)
		}
		j.retry(f)
	}
}

// choose has the request decided and booked.
func (r *Router) choose(ctx context.Context, j *job, ask *chooser.Request) error {
	began := time.Now()
	id := j.plan()
	ask.TraceID, ask.SpanID = span.IDs(j.span, id)
	choice, err := r.Chooser.Choose(ctx, ask)
	ended := time.Now()
	j.noteChoice(id, began, ended, choice, err)
	if err != nil {
		return r.undecided(ctx, j, err)
	}
	j.chose(choice, ended)
	r.whole(j, choice)
	return nil
}

// routed tells those who learn from where prompts went.
func (r *Router) routed(ctx context.Context, j *job) {
	r.noteKeyless(ctx, j)
	pick := j.choice.Decision.Pick()
	if pick == nil || j.enc == nil || j.seam != nil || j.choice.Decision.TooLong {
		return
	}
	if j.sent() && pick.Feed == kvblock.FeedExact { // of other ranks it is not known what they hold
		r.Tokens.Routed(j.pool.Served, j.enc, pick.Slot, j.adapter, overlap(j.choice.Decision))
	}
	if len(j.enc.IDs) == 0 && j.asked.Hashes != nil && r.Believe != nil {
		r.Believe(pick.Slot, j.asked.Hashes(int(pick.BlockSize)))
	}
}

// read takes from the body what routing needs.
func (r *Router) read(ctx context.Context, j *job) error {
	began := time.Now()
	req, err := r.Bodies.Read(openai.Params{
		Route: j.call.Route, Header: j.call.Header, SessionHeader: j.set.SessionHeader,
		Body: j.call.Body, Truncated: j.truncated, Limits: openai.Limits{Members: j.set.MaxMembers, Items: j.set.MaxMessages},
	})
	if err != nil {
		refused := badRequest(err)
		j.noteRead(began, refused)
		return refused
	}
	j.req, j.body = req, req.Body
	j.noteRead(began, nil)
	return nil
}

// findPool finds the replicas that serve the model. A body without a model means the one that each
// engine would take.
func (r *Router) findPool(j *job) error {
	snapshot := r.Registry.Snapshot()
	name := j.req.Model
	if name == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return apierror.New(apierror.InvalidBody, "the field \"model\" is missing, and the router does not serve exactly one model", nil, apierror.WithParam("model"))
		}
		j.usePool(pool)
		return nil
	}
	pool, ok := snapshot.Pool(name)
	if !ok {
		return unknownModel(name, snapshot)
	}
	j.usePool(pool)
	return nil
}

// unknownModel is a 404, unless a replica that could serve the model has not reported yet.
func unknownModel(name string, s *registry.Snapshot) error {
	if s.Silent() > 0 && len(s.Models()) == 0 || len(s.Replicas) == 0 {
		return apierror.New(apierror.NoReplica, "no replica has reported its models yet", nil, apierror.WithRetryAfter(time.Second))
	}
	return apierror.New(apierror.ModelNotFound, "The model `"+clip(name, 128)+"` does not exist.", nil, apierror.WithParam("model"))
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
func (r *Router) undecided(ctx context.Context, j *job, err error) error {
	var none *chooser.NoReplica
	var refused *chooser.Refused
	switch {
	case errors.As(err, &none):
		if j.failed != nil {
			return j.failed.public
		}
		if full(none.Decision) {
			return apierror.New(apierror.Overloaded, "every replica that may serve the request has reached its limit of requests", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
		}
		return apierror.New(apierror.NoReplica, "no replica of the model `"+clip(j.pool.Model, 128)+"` can take a request now", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
	case errors.As(err, &refused):
		reason, message := apierror.Overloaded, "the router's queue is full"
		switch refused.Cause {
		case "deadline":
			reason, message = apierror.DeadlineUnreachable, "no replica can answer within the deadline"
		case "target":
			reason, message = apierror.DeadlineUnreachable, "no replica can meet the request's latency targets now"
		case "timeout":
			message = "no replica became free in time"
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

// badRequest is the public form of what openai.Read says.
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
