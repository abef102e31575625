package attempt

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
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

// CachedOwn is how much of the prompt the router takes to have come from the cache.
func (a *Attempt) CachedOwn() int {
	return min(a.Choice.Decision.Expected(), a.Choice.Decision.PromptTokens)
}

// EndedEarly notes that the answer ended early.
func (a *Attempt) EndedEarly() {
	a.Broken = true
	a.Hop.EndedEarly()
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

// ProgressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const ProgressStep = 8

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
