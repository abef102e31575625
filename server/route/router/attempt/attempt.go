package attempt

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
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
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

// Attempt is one attempt of a request on one replica, from the choice to the release of its reservation.
type Attempt struct {
	Choice *chooser.Choice
	Chosen time.Time
	// Held and overhead are the time in the hold queue, and kvpilot's own time until the choice.
	Held, Overhead time.Duration
	admission
	askedIDs
	part
	halt
	// cache is what a split request is decoded from; nil for any other.
	cache *cache

	Response *upstream.Response
	Kept     []byte     // of an answer that is forwarded as one piece
	Hop      *story.Hop // nil when the request is not recorded
	// Paused watches an answer of /v1/responses; nil for any other.
	Paused *pauses.Watch
	// Reported counts the content events that the load book knows.
	Reported int
	// Broken is set when the answer ended early, ended when the reservation was released.
	Broken, Ended bool
}

// NewAttempt makes an attempt that cancel stops.
func NewAttempt(cancel context.CancelFunc) *Attempt { return &Attempt{halt: halt{cancel: cancel}} }

// admission is the breaker's: forced is set when the replica is used although its breaker is open.
type admission struct {
	Pass   breaker.Pass
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
	// Point is where the stream is resumed; nil for the whole answer.
	Point *resume.Point
	// Follower follows a stream that another replica could resume; nil for most.
	Follower *resume.Follower
	// Begun is set once something of a continuation came, gave once the client got something of it.
	Begun, Gave bool
	// Earlier counts the content events that other replicas sent to the client.
	Earlier int
	// asChat is set when the replica is asked for a message as a chat.
	asChat bool
	// Whole makes one piece of an answer that the replica streams; nil for any other.
	Whole *resume.Whole
	// warms is set when the replica is asked for one token, which no client gets, so that it has the prompt in its cache.
	warms bool
}

// halt stops an attempt.
type halt struct {
	cancel context.CancelFunc
	// Stopped is set when the chooser stopped the attempt, moves when it did so because the replica is left.
	Stopped, moves atomic.Bool
	// Orphaned is set when it was stopped because the replica that computed its prompt is gone.
	Orphaned atomic.Bool
}

// stop stops the attempt. Any goroutine may call it.
func (h *halt) stop(why chooser.Withdrawal) {
	h.moves.Store(why == chooser.Leaving)
	h.Stopped.Store(true)
	h.cancel()
}

// orphan stops the attempt for the end of the replica that computed its prompt.
func (h *halt) orphan() {
	h.Orphaned.Store(true)
	h.stop(chooser.Stalled)
}

// isStopped reports whether the attempt was stopped, by the chooser and not by the end of ctx.
func (h *halt) isStopped(ctx context.Context) bool { return h.Stopped.Load() && ctx.Err() == nil }

// Tries is what the attempts of a request share: the question to the chooser, and the results of the earlier attempts.
type Tries struct {
	Ask    chooser.Request
	failed *Failure // the last attempt's
	// Before is the time that replicas took until a stream was resumed.
	Before time.Duration
	Point  *resume.Point
	Warms  bool
	// Refusals is how many replicas gave nothing of the rest of a stream, since its last break.
	Refusals int
	// Passed is how many choices were dropped because the replica's breaker had just opened.
	Passed int
	// Blank is an answer without a token that the client may get after all.
	Blank  *Blank
	Deaths deaths
	// Carried follows a stream that another router has begun, up to the point; nil for any other.
	Carried *resume.Follower
}

// tried is how many replicas the request was sent to before.
func (t *Tries) tried() int { return t.Ask.Attempt - t.Passed }

// passOver prepares another choice instead of one that was dropped.
func (t *Tries) passOver(id replica.ID) {
	t.Ask.Avoid = append(t.Ask.Avoid, id)
	t.Ask.Attempt++
	t.Passed++
}

// Next prepares the attempt after one that ended with f, on another replica.
func (t *Tries) Next(a *Attempt, f *Failure) {
	t.failed = f
	t.Ask.Exclude = append(t.Ask.Exclude, a.Choice.Replica.ID)
	t.Ask.Attempt++
}

// Readmit allows the replica of an attempt again that only its rank was left for.
func (t *Tries) Readmit(a *Attempt, view *registry.Snapshot) {
	if LeavesRank(a, view) {
		t.Ask.Exclude = slices.DeleteFunc(t.Ask.Exclude, func(id replica.ID) bool { return id == a.Choice.Replica.ID })
	}
}

// LeavesRank reports whether the rank of an attempt drains, while others of its replica take requests.
func LeavesRank(a *Attempt, view *registry.Snapshot) bool {
	r, there := view.Replica(a.Choice.Replica.ID)
	return there && r.State == replica.StateReady && r.IsRankDrained(a.Choice.Rank)
}

// mayMove reports whether the request may be retried on another replica when its rank is stalled. The last attempt runs
// to its end: if every engine takes that long, another one does not help.
func (t *Tries) mayMove(rq *intake.Request) bool {
	tried := t.tried()
	if t.Point != nil {
		tried = t.Refusals
	}
	return rq.Upload == nil && rq.Call.Options.Pinned == "" && len(t.Ask.Replicas) > 1 && tried+1 < rq.Settings.Attempts
}

// EndOf says how the decision ended, for the record.
func EndOf(o retry.Verdict) decision.End {
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

// CachedOwn is how much of the prompt the router takes to have come from the cache.
func (a *Attempt) CachedOwn() int {
	return min(a.Choice.Decision.Expected(), a.Choice.Decision.PromptTokens)
}

// NewTries makes the question to the chooser for the first attempt.
func NewTries(rq *intake.Request) *Tries {
	t := &Tries{Before: rq.Standby.Took, Ask: chooser.Request{
		Settings: rq.Policies, Bytes: rq.Size(),
		Request: decision.Request{ID: rq.ID, RequestID: rq.Call.RequestID, Tenant: rq.Call.Tenant, Model: rq.Pool.Model, Adapter: rq.Adapter, Side: sideOf(rq.Side)},
		Pool:    chooser.Pool{Served: rq.Pool.Served, Replicas: rq.Pool.Replicas},
		Prompt:  chooser.Prompt{Unread: rq.Parsed.Unread()},
		Caller:  chooser.Caller{Session: rq.Apart(rq.Parsed.Session), SessionReturn: rq.SessionReturn(), Priority: -rq.Parsed.Priority},
		Reply: chooser.Reply{
			ExpectedOutput: rq.Parsed.Expected(), OutputLimit: rq.Parsed.MaxTokens, Samples: rq.Parsed.N,
			Unstreamed: !rq.Parsed.Stream, Uneven: len(rq.Parsed.Raw("tools")) > 0,
		},
		Limits: chooser.Limits{Options: rq.Call.Options, Holder: rq.Holder},
	}}
	rq.FillPrompt(&t.Ask)
	t.Ask.Splittable = rq.Pool.Pairs && (rq.Question == nil || rq.Question.Booking == intake.DryRun) && rq.Upload == nil && openai.Splittable(rq.Parsed)
	if rq.Policies.ReadsText(rq.Pool.Model, &rq.Call.Options) {
		t.Ask.Text = rq.Apart(rq.Parsed.PromptText())
	}
	return t
}

// Delivery is the answer as the client gets it, from one or more attempts. It belongs to one goroutine.
type Delivery struct {
	To intake.Sink
	// Begun is set once the client has the head of the answer, of this status.
	Begun  bool
	Status int
	// Scan reads what the client gets.
	Scan       sse.Scanner
	FirstToken time.Time
	// Opening is the beginning of the answer of the attempt under way.
	Opening opening.Opening

	// Attempt is the one under way or the last one; nil before the first choice and when none was made after a failure.
	Attempt *Attempt
	// Attempts counts them, chosen is set when one of them had a replica.
	Attempts int
	Chosen   bool
	Doubts   doubts
}

// SawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (d *Delivery) SawFirstToken() {
	now := time.Now()
	if d.FirstToken.IsZero() {
		d.FirstToken = now
	}
	d.Attempt.Choice.FirstToken()
	d.Attempt.Hop.FirstToken(now)
}

// Outcome says what a complete answer means: an engine may report its failure in a stream.
func (d *Delivery) Outcome() (retry.Verdict, decision.End) {
	switch {
	case !d.Scan.Failed():
		return retry.OK, decision.EndCompleted
	case d.Scan.ContentEvents() == 0:
		return retry.ClientFault, decision.EndFailed // the cause is not known
	}
	return retry.EngineError, decision.EndFailed
}

// Aborted gives the client of a stream that has begun the rest of the answer, up to the event that claims to end it.
func (d *Delivery) Aborted(rest []byte, streamed bool) error {
	if d.Begun && streamed && len(rest) > 0 {
		if err := d.To.Write(rest); err != nil {
			return Gone(err)
		}
	}
	return resume.ErrAborted
}

// EndedEarly notes that the answer ended early.
func (a *Attempt) EndedEarly() {
	a.Broken = true
	a.Hop.EndedEarly()
}

// Blank is an answer without a token that the client does not have, because another replica is asked first.
type Blank struct {
	Choice *chooser.Choice
	Status int
	Header http.Header
	Body   []byte
}

// stoppedBefore is the failure of an attempt that was stopped before the client's first byte.
func (h *halt) stoppedBefore(err error) *Failure {
	if h.Orphaned.Load() {
		return &Failure{Outcome: retry.EngineError, Public: apierror.New(apierror.UpstreamError, ErrTransfer.Error(), err)}
	}
	if h.moves.Load() {
		return &Failure{Outcome: retry.Moved, Public: apierror.New(apierror.UpstreamError, "the replica drains, and no other one takes the request", err)}
	}
	return &Failure{Outcome: retry.Stalled, Public: apierror.New(apierror.UpstreamError, "the replica has stalled", err)}
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

// IsSplit reports whether another replica computes the prompt.
func (a *Attempt) IsSplit() bool { return a.Choice != nil && a.Choice.Prefill() != nil }

// legID is the request id of a leg: no leg of any other request has it. Engines that push find each other by it, so both legs have the same.
func legID(rq *intake.Request, a *Attempt, leg string) string {
	if a.cache.pushes() {
		leg = "s"
	}
	return rq.ID + "-" + leg + strconv.Itoa(a.Choice.Decision.Attempt)
}

// idAt is the request id that an attempt's engine gets.
func idAt(rq *intake.Request, a *Attempt) string {
	if a.cache != nil {
		return legID(rq, a, "d")
	}
	return rq.EngineID()
}

// ProgressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const ProgressStep = 8

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
func (t *Tries) whole() {
	t.Ask.Splittable = false
	t.Ask.Attempt++
	t.Passed++
}

// death is a replica that stopped while it answered, with so many content events of the answer at the client.
type death struct {
	replica *replica.Replica
	at      int
}

// deaths are those of one request. A request that stops two replicas at the same token is taken to be the reason.
type deaths struct {
	all []death
	// Named is set once the request was named.
	Named bool
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
func (a *Attempt) died(f *Failure) bool {
	if f.Outcome != retry.Reset && f.Outcome != retry.Broken || a.Stopped.Load() {
		return false
	}
	for _, other := range []error{resume.ErrAborted, resume.ErrStrange, resume.ErrDiverged, ErrContinuation, ErrStalled} {
		if errors.Is(f.Public, other) {
			return false
		}
	}
	return true
}

// doubts are what a request's attempts leave open about its faults. The zero value has none.
type doubts struct {
	poison.Doubts
	origin retry.Origin // zero until it is needed
	// Cause is that of the last failure, as far as it is known.
	Cause retry.Cause
}

// ContinueAt makes the rest of the answer what the next replica is chosen for.
func (t *Tries) ContinueAt(rq *intake.Request, point *resume.Point) {
	t.Point = point
	if point.Again {
		return
	}
	a := &t.Ask
	a.Splittable = false
	a.PromptTokens, a.Estimated, a.Longest, a.Keyless = len(point.IDs), false, len(point.IDs), false
	a.ExpectedOutput, a.OutputLimit = max(rq.Parsed.Expected()-point.Answer, 0), max(rq.Parsed.MaxTokens-point.Answer, 0)
	ns := rq.Namespace()
	a.Hashes = func(blockSize int) []blockhash.Hash {
		if blockSize <= 0 {
			return nil
		}
		return blockhash.Extend(nil, 0, point.IDs, blockSize, ns.Seed())
	}
}

// MaxKept bounds an answer that is forwarded as one piece; a longer one goes to the client as it comes.
const MaxKept = 1 << 20

// Keep adds a piece to an answer that is forwarded as one piece. It returns what to forward once that has come whole, or is
// too long.
func (a *Attempt) Keep(piece []byte) (whole []byte, keeps bool) {
	if len(a.Kept) == 0 && int64(len(piece)) == a.Response.ContentLength {
		return piece, false // as nearly always
	}
	if a.Kept == nil && a.Response.ContentLength > 0 {
		a.Kept = make([]byte, 0, a.Response.ContentLength)
	}
	if a.Kept = append(a.Kept, piece...); len(a.Kept) <= MaxKept {
		return nil, true
	}
	whole, a.Kept = a.Kept, nil
	return whole, false
}

// Reset forgets what earlier attempts failed at.
func (t *Tries) Reset() { t.Refusals, t.Deaths = 0, deaths{} }
