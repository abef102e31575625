package attempt

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/pauses"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Attempt is one attempt of a request on one replica, from the choice to the release of its reservation.
type Attempt struct {
	Choice *chooser.Choice
	chosen time.Time
	// held and overhead are the time in the hold queue, and kvpilot's own time until the choice.
	held, overhead time.Duration
	admission
	askedIDs
	part
	halt
	// cache is what a split request is decoded from; nil for any other.
	cache *cache

	Response *upstream.Response
	kept     []byte     // of an answer that is forwarded as one piece
	Hop      *story.Hop // nil when the request is not recorded
	// paused watches an answer of /v1/responses; nil for any other.
	paused *pauses.Watch
	// reported counts the content events that the load book knows.
	reported int
	// broken is set when the answer ended early, ended when the reservation was released.
	broken, ended bool
}

// NewAttempt makes an attempt that cancel stops.
func NewAttempt(cancel context.CancelFunc) *Attempt { return &Attempt{halt: halt{cancel: cancel}} }

// NewDirect makes an attempt on a replica that was not chosen, of the request with an id.
func NewDirect(cancel context.CancelFunc, id string, on *replica.Replica, pass breaker.Pass) *Attempt {
	a := NewAttempt(cancel)
	a.Choice = &chooser.Choice{Decision: &decision.Decision{Request: decision.Request{ID: id}, Ranks: decision.Ranks{Chosen: -1}}, Replica: on}
	a.chosen, a.pass = time.Now(), pass
	return a
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
	// began is set once something of a continuation came, gave once the client got something of it.
	began, gave bool
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

// WasStopped reports whether the chooser stopped the attempt.
func (h *halt) WasStopped() bool { return h.stopped.Load() }

// IsOrphaned reports whether it was stopped because the replica that computed its prompt is gone.
func (h *halt) IsOrphaned() bool { return h.orphaned.Load() }

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

// CachedOwn is how much of the prompt the router takes to have come from the cache.
func (a *Attempt) CachedOwn() int {
	return min(a.Choice.Decision.Expected(), a.Choice.Decision.PromptTokens)
}

// EndedEarly notes that the answer ended early.
func (a *Attempt) EndedEarly() {
	a.broken = true
	a.Hop.EndedEarly()
}

// stoppedBefore is the failure of an attempt that was stopped before the client's first byte.
func (h *halt) stoppedBefore(err error) *Failure {
	if h.orphaned.Load() {
		return &Failure{Outcome: retry.EngineError, Public: apierror.New(apierror.UpstreamError, ErrTransfer.Error(), err)}
	}
	if h.moves.Load() {
		return &Failure{Outcome: retry.Moved, Public: apierror.New(apierror.UpstreamError, "the replica drains, and no other one takes the request", err)}
	}
	return &Failure{Outcome: retry.Stalled, Public: apierror.New(apierror.UpstreamError, "the replica has stalled", err)}
}

// progressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const progressStep = 8

// Progress reports the content events that the client has got, of this attempt and those before, in steps.
func (a *Attempt) Progress(events int) {
	if n := events - a.earlier; n >= a.reported+progressStep {
		a.Choice.Progress(n)
		a.reported = n
	}
}

// WasPaused reports whether the engine aborted an answer of /v1/responses because it was paused.
func (a *Attempt) WasPaused(ctx context.Context) bool { return a.paused.Aborted(ctx) }

// Finish notes that the reservation was released.
func (a *Attempt) Finish() { a.ended = true }

// BeginRest notes that something of a continuation came; false when that was too late. It is of no effect for a whole answer.
func (a *Attempt) BeginRest() bool {
	if a.point != nil && !a.began {
		a.began = a.Choice.Begin()
	}
	return a.point == nil || a.began
}

// Continues reports whether the attempt is a continuation of a stream.
func (p *part) Continues() bool { return p.point != nil }

// Continue has the attempt continue a stream of which the client has so many content events.
func (p *part) Continue(earlier int, f *resume.Follower) { p.earlier, p.follower = earlier, f }

// Gives notes that the client got something of the attempt's part.
func (p *part) Gives() { p.gave = true }

// IsUntouched reports whether the client has nothing of a continuation.
func (p *part) IsUntouched() bool { return p.point != nil && !p.gave }

// MaxKept bounds an answer that is forwarded as one piece; a longer one goes to the client as it comes.
const MaxKept = 1 << 20

// Keep adds a piece to an answer that is forwarded as one piece. It returns what to forward once that has come whole, or is
// too long.
func (a *Attempt) Keep(piece []byte) (whole []byte, keeps bool) {
	if len(a.kept) == 0 && int64(len(piece)) == a.Response.ContentLength {
		return piece, false // as nearly always
	}
	if a.kept == nil && a.Response.ContentLength > 0 {
		a.kept = make([]byte, 0, a.Response.ContentLength)
	}
	if a.kept = append(a.kept, piece...); len(a.kept) <= MaxKept {
		return nil, true
	}
	whole, a.kept = a.kept, nil
	return whole, false
}

// ChosenAt is when the replica was chosen.
func (a *Attempt) ChosenAt() time.Time { return a.chosen }

// Held is the time in the hold queue.
func (a *Attempt) Held() time.Duration { return a.held }

// Overhead is kvpilot's own time until the choice.
func (a *Attempt) Overhead() time.Duration { return a.overhead }

// Kept is the kept part of an answer that is forwarded as one piece.
func (a *Attempt) Kept() []byte { return a.kept }

// IsBroken reports whether the answer ended early.
func (a *Attempt) IsBroken() bool { return a.broken }

// HasEnded reports whether the reservation was released.
func (a *Attempt) HasEnded() bool { return a.ended }

// Follower follows a stream that another replica could resume; nil for most.
func (p *part) Follower() *resume.Follower { return p.follower }

// Earlier counts the content events that other replicas sent to the client.
func (p *part) Earlier() int { return p.earlier }

// Whole makes one piece of an answer that the replica streams; nil for any other.
func (p *part) Whole() *resume.Whole { return p.whole }
