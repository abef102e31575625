package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// attempt is one attempt of a request on one replica, from the choice to the release of its reservation.
type attempt struct {
	choice *chooser.Choice
	chosen time.Time
	// held and overhead are the time in the hold queue, and kvpilot's own time until the choice.
	held, overhead time.Duration
	admission
	askedIDs
	part
	halt
	// cache is what a split request is decoded from; nil for any other.
	cache *cache

	resp *upstream.Response
	kept []byte // of an answer that is forwarded as one piece
	hop  *hop   // nil when the request is not recorded
	// paused watches an answer of /v1/responses; nil for any other.
	paused *pauseWatch
	// reported counts the content events that the load book knows.
	reported int
	// broken is set when the answer ended early, ended when the reservation was released.
	broken, ended bool
}

// admission is the breaker's: forced is set when the replica is used although its breaker is open.
type admission struct {
	pass   breaker.Pass
	forced bool
}

// askedIDs is what the engine is asked in token ids.
type askedIDs struct {
	// asksIDs is set when it is asked for those of its answer, withoutIDs once it rejected the body for that.
	asksIDs, withoutIDs bool
	// handedOff is set when it is sent those of the prompt instead of the text.
	handedOff bool
}

// part is the attempt's part of a stream that several replicas answer. The zero value is a whole answer.
type part struct {
	// point is where the stream is resumed; nil for the whole answer.
	point *resume.Point
	// follower follows a stream that another replica could resume; nil for most.
	follower *resume.Follower
	// begun is set once something of a continuation came, gave once the client got something of it.
	begun, gave bool
	// earlier counts the content events that other replicas sent to the client.
	earlier int
	// asChat is set when the replica is asked for a message as a chat.
	asChat bool
	// warms is set when the replica is asked for one token, which no client gets, so that it has the prompt in its cache.
	warms bool
}

// halt stops an attempt.
type halt struct {
	cancel context.CancelFunc
	// stopped is set when the chooser stopped the attempt, moves when it did so because the replica is left.
	stopped, moves atomic.Bool
	// orphaned is set when it was stopped because the replica that computed its prompt is gone.
	orphaned atomic.Bool
}

// errStalled is why the answer of a stalled rank is not used.
var errStalled = errors.New("the replica has stalled")

// stop stops the attempt. Any goroutine may call it.
func (h *halt) stop(why chooser.Withdrawal) {
	h.moves.Store(why == chooser.Leaving)
	h.stopped.Store(true)
	h.cancel()
}

// orphan stops the attempt for the end of the replica that computed its prompt.
func (h *halt) orphan() {
	h.orphaned.Store(true)
	h.stop(chooser.Stalled)
}

// isStopped reports whether the attempt was stopped, by the chooser and not by the end of ctx.
func (h *halt) isStopped(ctx context.Context) bool { return h.stopped.Load() && ctx.Err() == nil }

// tries is what the attempts of a request share: the question to the chooser, and the results of the earlier attempts.
type tries struct {
	ask    chooser.Request
	failed *failure // the last attempt's
	// before is the time that replicas took until a stream was resumed.
	before time.Duration
	point  *resume.Point
	warms  bool
	// refusals is how many replicas gave nothing of the rest of a stream, since its last break.
	refusals int
	// passed is how many choices were dropped because the replica's breaker had just opened.
	passed int
	// blank is an answer without a token that the client may get after all.
	blank  *blank
	deaths deaths
	// carried follows a stream that another router has begun, up to the point; nil for any other.
	carried *resume.Follower
}

// tried is how many replicas the request was sent to before.
func (t *tries) tried() int { return t.ask.Attempt - t.passed }

// passOver prepares another choice instead of one that was dropped.
func (t *tries) passOver(id replica.ID) {
	t.ask.Avoid = append(t.ask.Avoid, id)
	t.ask.Attempt++
	t.passed++
}

// next prepares the attempt after one that ended with f, on another replica.
func (t *tries) next(a *attempt, f *failure) {
	t.failed = f
	t.ask.Exclude = append(t.ask.Exclude, a.choice.Replica.ID)
	t.ask.Attempt++
}

// attempts makes the attempts of requests: it has a replica chosen, sends it the request, and releases the reservation at the end.
type attempts struct {
	picker    *picker
	engines   *engines
	legs      *legs
	refusals  refusals
	blame     *blame
	tokens    *tokenizer.Pool
	responses *responses
	pausable  pausable
	stopper   stopper
	// aborted counts answers that an engine aborted.
	aborted metric.Int64Counter
}

// open makes one attempt up to the head of the replica's answer. On failure the attempt has ended; it is nil when no
// replica was chosen.
func (at *attempts) open(ctx context.Context, rq *request, t *tries, d *delivery) (*attempt, *failure) {
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
func (at *attempts) choose(ctx context.Context, rq *request, t *tries, d *delivery, a *attempt) *failure {
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

// mayMove reports whether the request may be retried on another replica when its rank is stalled. The last attempt runs
// to its end: if every engine takes that long, another one does not help.
func (t *tries) mayMove(rq *request) bool {
	tried := t.tried()
	if t.point != nil {
		tried = t.refusals
	}
	return rq.upload == nil && rq.call.Options.Pinned == "" && len(t.ask.Replicas) > 1 && tried+1 < rq.set.attempts
}

// send sends the request to the chosen replica, under actx, which ends with ctx or when the attempt is stopped, and
// reads the head of the answer.
func (at *attempts) send(ctx, actx context.Context, rq *request, d *delivery) *failure {
	a := d.attempt
	a.hop = rq.story.attempt(rq, a)
	a.hop.follows(d)
	if a.isSplit() {
		actx = at.legs.send(ctx, actx, rq, a)
		a.hop.began()
	}
	if rq.parsed.Prompt.API == prompt.APIResponses {
		a.paused = at.pausable.watch(actx, at.engines.upstream, a.choice.Replica)
	}
	resp, err := at.engines.exchange(actx, rq, a)
	outcome := upstream.Classify(resp, err)
	a.hop.answered(resp, outcome)
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
func (at *attempts) end(ctx context.Context, rq *request, d *delivery, f *failure, end decision.End) {
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
	a.hop.over(rq, d, f)
	a.choice.Release(result)
	at.legs.end(a, result.End)
	a.hop.released(end)
	a.cancel()
	a.paused.wait()
}

// endOf says how the decision ended, for the record.
func endOf(o retry.Verdict) decision.End {
	switch o {
	case retry.OK:
		return decision.EndCompleted
	case retry.Canceled:
		return decision.EndCanceled
	case retry.ClientFault:
		return decision.EndRejected
	case retry.EngineError: // mostly the last attempt
		return decision.EndFailed
	default:
	}
	if o.Retryable() {
		return decision.EndMoved
	}
	return decision.EndFailed
}

// learnUsage sets the request's usage in to, and reports it to the parts that predicted it. For a stream without usage the
// router's own count is used, and marked.
func (at *attempts) learnUsage(ctx context.Context, rq *request, d *delivery, to *chooser.Result) {
	a := d.attempt
	if u, ok := d.scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		if a.point != nil { // the client's counts are those of the whole request
			to.PromptTokens, to.OutputTokens = u.PromptTokens+a.point.Answer, u.CompletionTokens-a.point.Answer
		}
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

// tokensIn is about how many tokens came in n content events of a stream: each format but that of completions begins
// with an event that has none, chat for each of its choices.
func (rq *request) tokensIn(n int) int {
	switch rq.parsed.Prompt.API {
	case prompt.APIChat:
		return max(1, n-rq.parsed.N)
	case prompt.APIResponses, prompt.APIMessages:
		return max(1, n-1)
	case prompt.APICompletions, prompt.APIOther:
	}
	return n
}

// cachedOwn is how much of the prompt the router takes to have come from the cache.
func (a *attempt) cachedOwn() int {
	return min(overlap(a.choice.Decision), a.choice.Decision.PromptTokens)
}
