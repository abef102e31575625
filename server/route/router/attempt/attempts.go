package attempt

import (
	"context"
	"errors"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/pauses"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Dispatcher makes the attempts of requests: it has a replica chosen, sends it the request, and releases the reservation at the end.
type Dispatcher struct {
	Picker    *picker
	Engines   *sender
	Legs      *splitter
	Refusals  refusals
	Blame     *blame
	Tokens    *tokenizer.Pool
	responses *intake.Responses
	pausable  pauses.Replicas
	Stopper   stopper
	Retries   *Retrier
	Copier    *copier
	metrics   *metrics
}

// Params are the parts that attempts need. All but Guesses and Count are required.
type Params struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	// Decider decides and books.
	Decider  Decider
	Upstream *upstream.Client
	Breaker  *breaker.Breaker
	Budget   *retry.Budget
	// Guesses notes where prompts go that are known by their text only; nil notes nothing.
	Guesses Guesses
	// Count counts retries; nil counts none.
	Count  Counter
	Intake *intake.Intake
	Scope  scope.Scope
}

// New makes a dispatcher.
func New(p Params) *Dispatcher {
	known, log := poison.New(), p.Scope.Log()
	m := newMetrics(p.Scope.Meters(), known.Size)
	blame := &blame{registry: p.Registry, breaker: p.Breaker, poison: known, metrics: m}
	sender := &sender{upstream: p.Upstream, Registry: p.Registry, tokens: p.Tokens, log: log}
	return &Dispatcher{
		Picker: &picker{registry: p.Registry, decider: p.Decider, breaker: p.Breaker, tokens: p.Tokens, guesses: p.Guesses, keyless: &keyless{counter: m.Keyless, log: log}, standby: p.Intake.Standby}, Engines: sender,
		Legs: &splitter{
			watcher: watcher{legTiming{legPatience, blockLease}, p.Registry}, bootstraps: bootstraps{p.Upstream}, engines: sender, blame: blame,
			metrics: m, log: log,
		},
		Refusals: refusals{breaker: p.Breaker}, Blame: blame, Tokens: p.Tokens, responses: p.Intake.Responses, metrics: m, Stopper: stopper{p.Upstream, &m.Resumes, log},
		Retries: &Retrier{blame: blame, Budget: p.Budget, retried: &m.Retries, count: p.Count, log: log},
		Copier:  &copier{upstream: p.Upstream, registry: p.Registry, Patience: copyPatience, results: &m.Copies, log: log},
	}
}

// Resumes counts the streams that ended early.
func (at *Dispatcher) Resumes() *instruments.Keyed[string] { return &at.metrics.Resumes }

// Open makes one attempt up to the head of the replica's answer. On failure the attempt has ended; it is nil when no
// replica was chosen.
func (at *Dispatcher) Open(ctx context.Context, rq *intake.Request, t *Tries, d *Delivery) (*Attempt, *Failure) {
	actx, cancel := context.WithCancel(ctx)
	a := NewAttempt(cancel)
	a.point, a.warms = t.point, t.warms
	t.Ask.Abandon, t.Ask.Movable = a.stop, t.mayMove(rq)
	if f := at.Choose(ctx, rq, t, d, a); f != nil {
		cancel()
		return nil, f
	}
	switch {
	case !a.IsSplit():
		at.Picker.LearnRouted(ctx, rq, t, a)
	case !at.Legs.prefill(ctx, actx, rq, d, a):
		at.Legs.abandon(rq, d, t, a)
		return at.Open(ctx, rq, t, d) // whole: once
	}
	if f := at.Send(ctx, actx, rq, d); f != nil {
		end := EndOf(f.Outcome)
		if f.Poisoned = at.Stopper.Stops(ctx, rq, t, d, f); f.Poisoned {
			end = decision.EndPoisoned
		}
		at.End(ctx, rq, d, f, end)
		return a, f
	}
	return a, nil
}

// Choose has a replica chosen, and makes a the attempt under way.
func (at *Dispatcher) Choose(ctx context.Context, rq *intake.Request, t *Tries, d *Delivery, a *Attempt) *Failure {
	d.Attempt = nil
	d.attempts++
	if err := at.Picker.pick(ctx, rq, t, a); err != nil {
		if rq.Refused != nil && rq.Refused.Firm && ctx.Err() == nil { // truer than that no replica can take it now
			err = rq.Refusal()
		}
		return &Failure{Unchosen: true, Public: apierror.From(err)}
	}
	d.Take(a)
	return nil
}

// Send sends the request to the chosen replica, under actx, which ends with ctx or when the attempt is stopped, and
// reads the head of the answer.
func (at *Dispatcher) Send(ctx, actx context.Context, rq *intake.Request, d *Delivery) *Failure {
	a := d.Attempt
	a.Hop = BeginHop(rq, a)
	d.Follows()
	if a.IsSplit() {
		actx = at.Legs.send(ctx, actx, rq, a)
		a.Hop.Began()
	}
	if rq.Parsed.Prompt.API == prompt.APIResponses {
		a.paused = at.pausable.Watch(actx, at.Engines.upstream, a.Choice.Replica)
	}
	resp, err := at.Engines.exchange(actx, rq, a)
	outcome := upstream.Classify(resp, err)
	a.Hop.Answered(resp, outcome)
	if err != nil || outcome != retry.OK {
		f := at.Refusals.Refusal(ctx, a, resp, err, outcome)
		if a.IsSplit() && f.Outcome == retry.EngineError { // as vLLM answers when it cannot read the cache
			at.Blame.Settle(rq, d, a, retry.Canceled)
			return f
		}
		at.Blame.Settle(rq, d, a, f.Outcome)
		return f
	}
	a.Response = resp
	return nil
}

// End ends the attempt under way, with f when it failed, and releases its reservation. Only the first call counts.
func (at *Dispatcher) End(ctx context.Context, rq *intake.Request, d *Delivery, f *Failure, end decision.End) {
	a := d.Attempt
	if a == nil || a.ended {
		return
	}
	a.ended = true
	result := chooser.ResultOf(end)
	if a.Response != nil {
		a.Response.Close()
		at.LearnUsage(ctx, rq, d, &result)
	}
	if end != decision.EndCompleted && a.point == nil {
		at.Tokens.Withdrawn(rq.Pool.Served, rq.Enc, a.Choice.Slot, rq.Adapter)
	}
	EndHop(rq, d, f)
	a.Choice.Release(result)
	at.Legs.end(a, result.End)
	a.Hop.Released(end)
	a.cancel()
	a.paused.Wait()
}

// LearnUsage sets the request's usage in to, and reports it to the parts that predicted it. For a stream without usage the
// router's own count is used, and marked.
func (at *Dispatcher) LearnUsage(ctx context.Context, rq *intake.Request, d *Delivery, to *chooser.Result) {
	a := d.Attempt
	if u, ok := d.Scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		if a.point != nil { // the client's counts are those of the whole request
			to.PromptTokens, to.OutputTokens = u.PromptTokens+a.point.Answer, u.CompletionTokens-a.point.Answer
		}
	}
	if a.cache != nil && a.cache.isMooncake() && to.CachedTokens >= 0 { // the engine counts all that it read from the other one
		to.CachedTokens = a.cache.usage.CachedTokens
	}
	if a.point == nil { // of a resumed stream's prompt there is nothing to learn: no client sent it
		to.PromptTokens = a.counted(to.PromptTokens)
		at.observe(ctx, rq, a, to)
		at.Pin(rq, d)
	}
	if a.follower != nil {
		at.Engines.stamps.learn(a.Choice.Replica, a.follower.Stamp())
	}
	if n := d.Scan.ContentEvents() - a.earlier; to.OutputTokens < 0 && n > 0 && !d.firstToken.IsZero() {
		if to.PromptTokens < 0 {
			to.PromptTokens = a.Choice.Decision.PromptTokens
		}
		to.CachedTokens, to.OutputTokens, to.Counted = a.CachedOwn(), rq.TokensIn(n), true
	}
	if a.point == nil && rq.Parsed.N <= 1 && to.End == decision.EndCompleted { // the conversation's next turn can count on it
		at.Tokens.Answered(rq.Pool.Served, rq.Enc, a.Choice.Slot, to.OutputTokens)
	}
}

// counted is the engine's count of the prompt's tokens: usage, or, in a stream without it (negative), the ids that a followed one begins with.
// A stream whose beginning a client brought, which is no engine's word, has a point, and is not counted.
func (a *Attempt) counted(usage int) int {
	if usage < 0 && a.follower != nil && a.follower.PromptTokens() > 0 {
		return a.follower.PromptTokens()
	}
	return usage
}

// observe lets the parity guard compare what was predicted with what the engine counted.
func (at *Dispatcher) observe(ctx context.Context, rq *intake.Request, a *Attempt, res *chooser.Result) {
	if rq.Enc == nil || res.PromptTokens < 0 {
		return
	}
	at.Tokens.Observe(ctx, tokenizer.Observation{
		Pool: rq.Pool.Served, Encoding: rq.Enc, PromptTokens: res.PromptTokens, CachedTokens: res.CachedTokens,
		PredictedOverlap: a.Choice.Held(), HandedOff: a.handedOff,
	})
}

// Broke is broken, and counts.
func (at *Dispatcher) Broke(ctx context.Context, d *Delivery, err error) *Failure {
	if errors.Is(err, resume.ErrAborted) {
		at.metrics.Aborted.Add(context.Background(), 1)
	}
	return broken(ctx, d, err)
}

// broken is the failure of an answer that ended with err, before it was complete.
func broken(ctx context.Context, d *Delivery, err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	text := "the replica's answer ended early"
	switch {
	case errors.Is(err, errClientGone):
		return &Failure{Outcome: retry.Canceled, Public: apierror.From(intake.Cause(ctx, context.Canceled))}
	case errors.Is(err, ErrStalled), d.Attempt.isStopped(ctx):
		if !d.begun {
			return d.Attempt.stoppedBefore(err)
		}
		text = "the replica stopped in the middle of its answer"
	case ctx.Err() != nil:
		return &Failure{Outcome: retry.Canceled, Public: apierror.From(intake.Cause(ctx, context.Canceled))}
	case errors.Is(err, ErrTransfer):
		return &Failure{Outcome: retry.EngineError, Public: apierror.New(apierror.UpstreamError, ErrTransfer.Error(), err)}
	case errors.Is(err, resume.ErrAborted):
		text = resume.ErrAborted.Error()
	case !d.begun:
		text = "the replica's answer ended early, before it began"
	}
	return &Failure{Outcome: retry.Broken, Public: apierror.New(apierror.UpstreamStreamBroken, text, err)}
}

// Pin remembers where the response of the answer under way is stored.
func (at *Dispatcher) Pin(rq *intake.Request, d *Delivery) {
	if rq.Call.Route == openai.RouteResponses {
		at.responses.KeepPin(rq.Call.Tenant, d.Scan.ResponseID(), d.Attempt.Choice.Replica.ID)
	}
}
