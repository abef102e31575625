package router

import (
	"context"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// maxErrorBody bounds an engine's refusal that is read to be passed on.
const maxErrorBody = 1 << 20

// attempt sends the request to the chosen replica and passes the answer on, under ctx, which ends with the
// caller's or when the attempt is taken back. Every way out ends the reservation. It returns nil when the
// client has the whole answer.
func (r *Router) attempt(caller, ctx context.Context, j *job, to Sink) (f *failure) {
	result := chooser.Result{End: decision.EndFailed, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
	choice, h := j.choice, j.noteAttempt()
	defer func() {
		h.over(j, choice, f)
		choice.Release(result)
		h.released(result.End)
	}()
	pass, ok := r.Breaker.Allow(choice.Replica.ID)
	if !ok && hasOther(choice.Decision) {
		result.End = decision.EndMoved
		f := &failure{outcome: retry.Unavailable, public: errOnTrial()}
		f.resumed = r.asksAgain(caller, j, f)
		return f
	}

	out := r.toEngine(ctx, j)
	h.observe(out)
	resp, err := r.Upstream.Do(ctx, upstream.Target{Replica: choice.Replica, Rank: choice.Rank}, out)
	outcome := upstream.Classify(resp, err)
	h.answered(resp, outcome)
	if err != nil || outcome != retry.OK {
		f := r.refusal(ctx, j, resp, err, outcome)
		r.settle(choice.Replica.ID, pass, f.outcome)
		result.End = endOf(f.outcome)
		f.resumed = r.asksAgain(caller, j, f)
		return f
	}
	defer resp.Close()
	earlier := j.earlier()
	err = r.relay(ctx, j, resp, to)
	r.usage(ctx, j, earlier, &result)
	if err == nil {
		outcome, result.End = j.ended()
		r.answered(j, &result)
		r.settle(choice.Replica.ID, pass, outcome)
		return nil
	}
	h.brokeOff()
	f = r.broken(ctx, j, err)
	r.settle(choice.Replica.ID, pass, f.outcome)
	result.End = endOf(f.outcome)
	switch {
	case r.conclude(caller, j, err, to):
		result.End = decision.EndCompleted
		r.answered(j, &result)
		return nil
	case r.goesOn(caller, j, f):
		result.End, f.resumed = decision.EndResumed, true
	case j.begun && f.outcome == retry.Broken:
		result.End = decision.EndFailed
	}
	return f
}

// settle tells those who judge replicas how an attempt went.
func (r *Router) settle(id replica.ID, pass breaker.Pass, outcome retry.Verdict) {
	r.Breaker.Report(id, pass, outcome)
	switch outcome {
	case retry.Unreachable, retry.Broken, retry.Malformed, retry.Stalled:
		r.Registry.ReportFailure(id, errAnswer)
	case retry.OK:
		r.Registry.Alive(id)
	default: // says nothing about whether the replica is there
	}
}

// usage takes over what the engine said that the request has cost. Of a stream of which it said nothing, the
// router's own count is taken, and marked as that.
func (r *Router) usage(ctx context.Context, j *job, earlier int, to *chooser.Result) {
	r.reported(ctx, j, to)
	if n := j.scan.ContentEvents() - earlier; to.PromptTokens < 0 && n > 0 && !j.firstToken.IsZero() {
		to.PromptTokens, to.CachedTokens = j.choice.Decision.PromptTokens, j.cachedOwn()
		to.OutputTokens, to.Counted = j.tokensIn(n), true
	}
}

// reported takes over the engine's usage, and learns from it.
func (r *Router) reported(ctx context.Context, j *job, to *chooser.Result) {
	if u, ok := j.scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		if j.seam != nil { // the client's counts are those of the whole request
			to.PromptTokens, to.OutputTokens = u.PromptTokens+j.seam.Answer, u.CompletionTokens-j.seam.Answer
		}
	}
	if j.seam != nil {
		return // nothing to learn of prompts: this one is no client's
	}
	r.observe(ctx, j, to)
	r.pin(j)
}

// tokensIn is about how many tokens came in n content events of a stream: each format but that of completions begins
// with an event that has none, chat for each of its choices.
func (j *job) tokensIn(n int) int {
	switch j.req.Prompt.API {
	case prompt.APIChat:
		return max(1, n-j.req.N)
	case prompt.APIResponses, prompt.APIMessages:
		return max(1, n-1)
	case prompt.APICompletions, prompt.APIOther:
	}
	return n
}

// cachedOwn is how much of the prompt the router takes to have come from the cache.
func (j *job) cachedOwn() int { return min(overlap(j.choice.Decision), j.choice.Decision.PromptTokens) }
