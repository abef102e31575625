package router

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/opening"
	"github.com/kvpilot/kvpilot/server/route/router/pauses"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
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
	kept []byte     // of an answer that is forwarded as one piece
	hop  *story.Hop // nil when the request is not recorded
	// paused watches an answer of /v1/responses; nil for any other.
	paused *pauses.Watch
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
	// whole makes one piece of an answer that the replica streams; nil for any other.
	whole *resume.Whole
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

// readmit allows the replica of an attempt again that only its rank was left for.
func (t *tries) readmit(a *attempt, view *registry.Snapshot) {
	if leavesRank(a, view) {
		t.ask.Exclude = slices.DeleteFunc(t.ask.Exclude, func(id replica.ID) bool { return id == a.choice.Replica.ID })
	}
}

// leavesRank reports whether the rank of an attempt drains, while others of its replica take requests.
func leavesRank(a *attempt, view *registry.Snapshot) bool {
	r, there := view.Replica(a.choice.Replica.ID)
	return there && r.State == replica.StateReady && r.IsRankDrained(a.choice.Rank)
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

// cachedOwn is how much of the prompt the router takes to have come from the cache.
func (a *attempt) cachedOwn() int {
	return min(a.choice.Decision.Expected(), a.choice.Decision.PromptTokens)
}

// newTries makes the question to the chooser for the first attempt.
func newTries(rq *request) *tries {
	t := &tries{before: rq.standby.took, ask: chooser.Request{
		Settings: rq.policies, Bytes: rq.size(),
		Request: decision.Request{ID: rq.id, RequestID: rq.call.RequestID, Tenant: rq.call.Tenant, Model: rq.pool.Model, Adapter: rq.adapter, Side: sideOf(rq.side)},
		Pool:    chooser.Pool{Served: rq.pool.Served, Replicas: rq.pool.Replicas},
		Prompt:  chooser.Prompt{Unread: rq.parsed.Unread()},
		Caller:  chooser.Caller{Session: rq.apart(rq.parsed.Session), SessionReturn: rq.sessionReturn(), Priority: -rq.parsed.Priority},
		Reply: chooser.Reply{
			ExpectedOutput: rq.parsed.Expected(), OutputLimit: rq.parsed.MaxTokens, Samples: rq.parsed.N,
			Unstreamed: !rq.parsed.Stream, Uneven: len(rq.parsed.Raw("tools")) > 0,
		},
		Limits: chooser.Limits{Options: rq.call.Options, Holder: rq.holder},
	}}
	rq.prompt(&t.ask)
	t.ask.Splittable = rq.pool.Pairs && (rq.question == nil || rq.question.Booking == DryRun) && rq.upload == nil && openai.Splittable(rq.parsed)
	if rq.policies.ReadsText(rq.pool.Model, &rq.call.Options) {
		t.ask.Text = rq.apart(rq.parsed.PromptText())
	}
	return t
}

// delivery is the answer as the client gets it, from one or more attempts. It belongs to one goroutine.
type delivery struct {
	to Sink
	// begun is set once the client has the head of the answer, of this status.
	begun  bool
	status int
	// scan reads what the client gets.
	scan       sse.Scanner
	firstToken time.Time
	// opening is the beginning of the answer of the attempt under way.
	opening opening.Opening

	// attempt is the one under way or the last one; nil before the first choice and when none was made after a failure.
	attempt *attempt
	// attempts counts them, chosen is set when one of them had a replica.
	attempts int
	chosen   bool
	doubts   doubts
}

// sawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (d *delivery) sawFirstToken() {
	now := time.Now()
	if d.firstToken.IsZero() {
		d.firstToken = now
	}
	d.attempt.choice.FirstToken()
	d.attempt.hop.FirstToken(now)
}

// outcome says what a complete answer means: an engine may report its failure in a stream.
func (d *delivery) outcome() (retry.Verdict, decision.End) {
	switch {
	case !d.scan.Failed():
		return retry.OK, decision.EndCompleted
	case d.scan.ContentEvents() == 0:
		return retry.ClientFault, decision.EndFailed // the cause is not known
	}
	return retry.EngineError, decision.EndFailed
}

// aborted gives the client of a stream that has begun the rest of the answer, up to the event that claims to end it.
func (d *delivery) aborted(rest []byte, streamed bool) error {
	if d.begun && streamed && len(rest) > 0 {
		if err := d.to.Write(rest); err != nil {
			return gone(err)
		}
	}
	return resume.ErrAborted
}

// endedEarly notes that the answer ended early.
func (a *attempt) endedEarly() {
	a.broken = true
	a.hop.EndedEarly()
}

// blank is an answer without a token that the client does not have, because another replica is asked first.
type blank struct {
	choice *chooser.Choice
	status int
	header http.Header
	body   []byte
}

// stoppedBefore is the failure of an attempt that was stopped before the client's first byte.
func (h *halt) stoppedBefore(err error) *failure {
	if h.orphaned.Load() {
		return &failure{outcome: retry.EngineError, public: apierror.New(apierror.UpstreamError, errTransfer.Error(), err)}
	}
	if h.moves.Load() {
		return &failure{outcome: retry.Moved, public: apierror.New(apierror.UpstreamError, "the replica drains, and no other one takes the request", err)}
	}
	return &failure{outcome: retry.Stalled, public: apierror.New(apierror.UpstreamError, "the replica has stalled", err)}
}

// sideOf is a request's side, as its decisions have it.
func sideOf(a *splits.Assignment) decision.Side {
	if a == nil {
		return decision.Side{}
	}
	return decision.Side{Model: a.Split, Name: a.Side, InsteadOf: a.InsteadOf}
}

// cache is what an attempt decodes from: the prompt's cache on the replica that computed it.
type cache struct {
	lead *chooser.Choice
	legs openai.Legs
	// params is what the engine passed on, raw; nil until then.
	params []byte
	usage  openai.Prefilled
	sent   time.Time
	vigil  *vigil
	over   atomic.Bool // lead was released, or will be
}

// pushes reports whether the cache is written by the engine that computes it.
func (c *cache) pushes() bool { return c.lead.Replica.Transport() == replica.NIXLPush }

// isMooncake reports whether engines find the cache by a bootstrap server.
func (c *cache) isMooncake() bool { return c.lead.Replica.Transport() == replica.Mooncake }

// lingers reports whether an engine loses blocks whose client leaves while it waits for the cache, or keeps them for many minutes.
func (c *cache) lingers() bool { return c.pushes() || c.isMooncake() }

// isKept reports whether the engine that computed the prompt keeps its blocks for another one.
func (c *cache) isKept() bool {
	return c.usage.PromptTokens >= 0 && (c.params != nil || c.isMooncake())
}

// fits reports whether the engine passes caches on in the way that its label says.
func (c *cache) fits() bool {
	return c.usage.Mode == "" || (c.usage.Mode == "push") == c.pushes()
}

// booked is how the booking of the rank that prefills ends.
func (c *cache) booked(end decision.End) chooser.Result {
	result := chooser.ResultOf(end)
	if c.params != nil {
		result.End, result.PromptTokens, result.OutputTokens, result.CachedTokens = decision.EndCompleted, c.usage.PromptTokens, 1, c.usage.CachedTokens
	}
	return result
}

// isSplit reports whether another replica computes the prompt.
func (a *attempt) isSplit() bool { return a.choice != nil && a.choice.Prefill() != nil }

// legID is the request id of a leg: no leg of any other request has it. Engines that push find each other by it, so both legs have the same.
func legID(rq *request, a *attempt, leg string) string {
	if a.cache.pushes() {
		leg = "s"
	}
	return rq.id + "-" + leg + strconv.Itoa(a.choice.Decision.Attempt)
}

// idAt is the request id that an attempt's engine gets.
func idAt(rq *request, a *attempt) string {
	if a.cache != nil {
		return legID(rq, a, "d")
	}
	return rq.engineID()
}

// progressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const progressStep = 8

// vigil watches the leg of a split request that decodes, until an answer shows that the cache was read. An engine may wait for a cache for
// good: when the replica that computed it has died, or when nothing was written.
type vigil struct {
	// over is closed when the cache was read, or when the leg has ended.
	over   chan struct{}
	closed sync.Once
}

func newVigil() *vigil { return &vigil{over: make(chan struct{})} }

// close ends the vigil. It is idempotent.
func (v *vigil) close() { v.closed.Do(func() { close(v.over) }) }

// whole has the next attempt serve the request whole. The one before it does not count as a replica that was tried.
func (t *tries) whole() {
	t.ask.Splittable = false
	t.ask.Attempt++
	t.passed++
}

// death is a replica that stopped while it answered, with so many content events of the answer at the client.
type death struct {
	replica *replica.Replica
	at      int
}

// deaths are those of one request. A request that stops two replicas at the same token is taken to be the reason.
type deaths struct {
	all []death
	// named is set once the request was named.
	named bool
}

// add notes a death, and returns the other replica that stopped at the same token; nil when there is none.
func (d *deaths) add(one death) (other *replica.Replica) {
	known := false
	for _, o := range d.all {
		switch same := o.replica.ID == one.replica.ID; {
		case o.at == one.at && same:
			known = true
		case o.at == one.at:
			other = o.replica
		}
	}
	if !known {
		d.all = append(d.all, one)
	}
	return other
}

// died reports whether f looks like the end of the replica's process, which had the request.
func (a *attempt) died(f *failure) bool {
	if f.outcome != retry.Reset && f.outcome != retry.Broken || a.stopped.Load() {
		return false
	}
	for _, other := range []error{resume.ErrAborted, resume.ErrStrange, resume.ErrDiverged, errContinuation, errStalled} {
		if errors.Is(f.public, other) {
			return false
		}
	}
	return true
}

// doubts are what a request's attempts leave open about its faults. The zero value has none.
type doubts struct {
	poison.Doubts
	origin retry.Origin // zero until it is needed
	// cause is that of the last failure, as far as it is known.
	cause retry.Cause
}
