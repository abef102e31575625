package router

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/pauses"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// dispatcher makes the attempts of requests: it has a replica chosen, sends it the request, and releases the reservation at the end.
type dispatcher struct {
	picker    *picker
	engines   *sender
	legs      *splitter
	refusals  refusals
	blame     *blame
	tokens    *tokenizer.Pool
	responses *responses
	pausable  pauses.Replicas
	stopper   stopper
	// aborted counts answers that an engine aborted.
	aborted metric.Int64Counter
}

// open makes one attempt up to the head of the replica's answer. On failure the attempt has ended; it is nil when no
// replica was chosen.
func (at *dispatcher) open(ctx context.Context, rq *request, t *tries, d *delivery) (*attempt, *failure) {
	actx, cancel := context.WithCancel(ctx)
	a := &attempt{halt: halt{cancel: cancel}, part: part{point: t.point, warms: t.warms}}
	t.ask.Abandon, t.ask.Movable = a.stop, t.mayMove(rq)
	if f := at.choose(ctx, rq, t, d, a); f != nil {
		cancel()
		return nil, f
	}
	switch {
	case !a.isSplit():
		at.picker.learnRouted(ctx, rq, t, a)
	case !at.legs.prefill(ctx, actx, rq, d, a):
		at.legs.abandon(rq, d, t, a)
		return at.open(ctx, rq, t, d) // whole: once
	}
	if f := at.send(ctx, actx, rq, d); f != nil {
		end := endOf(f.outcome)
		if f.poisoned = at.stopper.stops(ctx, rq, t, d, f); f.poisoned {
			end = decision.EndPoisoned
		}
		at.end(ctx, rq, d, f, end)
		return a, f
	}
	return a, nil
}

// choose has a replica chosen, and makes a the attempt under way.
func (at *dispatcher) choose(ctx context.Context, rq *request, t *tries, d *delivery, a *attempt) *failure {
	d.attempt = nil
	d.attempts++
	if err := at.picker.pick(ctx, rq, t, a); err != nil {
		if rq.refused != nil && rq.refused.Firm && ctx.Err() == nil { // truer than that no replica can take it now
			err = rq.refusal()
		}
		return &failure{unchosen: true, public: apierror.From(err)}
	}
	d.attempt, d.chosen = a, true
	return nil
}

// send sends the request to the chosen replica, under actx, which ends with ctx or when the attempt is stopped, and
// reads the head of the answer.
func (at *dispatcher) send(ctx, actx context.Context, rq *request, d *delivery) *failure {
	a := d.attempt
	a.hop = beginHop(rq, a)
	d.follows()
	if a.isSplit() {
		actx = at.legs.send(ctx, actx, rq, a)
		a.hop.Began()
	}
	if rq.parsed.Prompt.API == prompt.APIResponses {
		a.paused = at.pausable.Watch(actx, at.engines.upstream, a.choice.Replica)
	}
	resp, err := at.engines.exchange(actx, rq, a)
	outcome := upstream.Classify(resp, err)
	a.hop.Answered(resp, outcome)
	if err != nil || outcome != retry.OK {
		f := at.refusals.refusal(ctx, a, resp, err, outcome)
		if a.isSplit() && f.outcome == retry.EngineError { // as vLLM answers when it cannot read the cache
			at.blame.settle(rq, d, a, retry.Canceled)
			return f
		}
		at.blame.settle(rq, d, a, f.outcome)
		return f
	}
	a.resp = resp
	return nil
}

// end ends the attempt under way, with f when it failed, and releases its reservation. Only the first call counts.
func (at *dispatcher) end(ctx context.Context, rq *request, d *delivery, f *failure, end decision.End) {
	a := d.attempt
	if a == nil || a.ended {
		return
	}
	a.ended = true
	result := chooser.Result{End: end, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
	if a.resp != nil {
		a.resp.Close()
		at.learnUsage(ctx, rq, d, &result)
	}
	endHop(rq, d, f)
	a.choice.Release(result)
	at.legs.end(a, result.End)
	a.hop.Released(end)
	a.cancel()
	a.paused.Wait()
}

// learnUsage sets the request's usage in to, and reports it to the parts that predicted it. For a stream without usage the
// router's own count is used, and marked.
func (at *dispatcher) learnUsage(ctx context.Context, rq *request, d *delivery, to *chooser.Result) {
	a := d.attempt
	if u, ok := d.scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		if a.point != nil { // the client's counts are those of the whole request
			to.PromptTokens, to.OutputTokens = u.PromptTokens+a.point.Answer, u.CompletionTokens-a.point.Answer
		}
	}
	if a.cache != nil && a.cache.isMooncake() && to.CachedTokens >= 0 { // the engine counts all that it read from the other one
		to.CachedTokens = a.cache.usage.CachedTokens
	}
	if a.point == nil { // of a resumed stream's prompt there is nothing to learn: no client sent it
		at.observe(ctx, rq, a, to)
		at.responses.pin(rq, d)
	}
	if n := d.scan.ContentEvents() - a.earlier; to.PromptTokens < 0 && n > 0 && !d.firstToken.IsZero() {
		to.PromptTokens, to.CachedTokens = a.choice.Decision.PromptTokens, a.cachedOwn()
		to.OutputTokens, to.Counted = rq.tokensIn(n), true
	}
	if a.point == nil && rq.parsed.N <= 1 && to.End == decision.EndCompleted { // the conversation's next turn can count on it
		at.tokens.Answered(rq.pool.Served, rq.enc, a.choice.Slot, to.OutputTokens)
	}
}

// observe lets the parity guard compare what was predicted with what the engine counted.
func (at *dispatcher) observe(ctx context.Context, rq *request, a *attempt, res *chooser.Result) {
	if rq.enc == nil || res.PromptTokens < 0 {
		return
	}
	at.tokens.Observe(ctx, tokenizer.Observation{
		Pool: rq.pool.Served, Encoding: rq.enc, PromptTokens: res.PromptTokens, CachedTokens: res.CachedTokens,
		PredictedOverlap: a.choice.Held(), HandedOff: a.handedOff,
	})
}

// broke is broken, and counts.
func (at *dispatcher) broke(ctx context.Context, d *delivery, err error) *failure {
	if errors.Is(err, resume.ErrAborted) {
		at.aborted.Add(context.Background(), 1)
	}
	return broken(ctx, d, err)
}

// broken is the failure of an answer that ended with err, before it was complete.
func broken(ctx context.Context, d *delivery, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	text := "the replica's answer ended early"
	switch {
	case errors.Is(err, errClientGone):
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, context.Canceled))}
	case errors.Is(err, errStalled), d.attempt.isStopped(ctx):
		if !d.begun {
			return d.attempt.stoppedBefore(err)
		}
		text = "the replica stopped in the middle of its answer"
	case ctx.Err() != nil:
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, context.Canceled))}
	case errors.Is(err, errTransfer):
		return &failure{outcome: retry.EngineError, public: apierror.New(apierror.UpstreamError, errTransfer.Error(), err)}
	case errors.Is(err, resume.ErrAborted):
		text = resume.ErrAborted.Error()
	case !d.begun:
		text = "the replica's answer ended early, before it began"
	}
	return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, text, err)}
}
