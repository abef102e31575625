package router

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// errNotCarried is the answer to a client whose stream cannot be continued.
func errNotCarried(why string) error {
	return apierror.New(apierror.Conflict, "the stream cannot be continued ("+why+"): send the request again without "+openai.MemberReceived, nil, apierror.WithParam(openai.MemberReceived))
}

// takeOver prepares the attempts of a request whose client has the beginning of its stream from another router. over is set when the client
// has got all that was missing.
func (an *answers) takeOver(ctx context.Context, rq *request, t *tries, d *delivery) (over bool, err error) {
	on := rq.pool.Replicas[0]
	for _, r := range rq.pool.Replicas {
		if hasTokenRoutes(r) && (rq.chat == nil || answersChat(r)) {
			on = r
			break
		}
	}
	s := &resumed{resumer: an.resumer, rq: rq, tries: t, d: d, follower: an.attempts.engines.follow(rq, on)}
	if s.follower == nil {
		return false, errNotCarried("its request is none of those that another replica continues")
	}
	stamp := an.attempts.engines.stamps.known(on, 0)
	stamp.Details = false // of the cache that another router saw nothing is known
	s.follower.Seal(stamp)
	if end, ok := s.follower.Ending(); ok || s.follower.Done() {
		return true, an.giveEnd(d, end)
	}
	point, result := s.point(ctx, false, false)
	if result == resultResumed && !point.Again && len(point.IDs)-point.Answer > len(rq.call.Body)+templateTokens {
		result = resultIneligible // the tenant pays for the prompt of the body
	}
	if result == resultResumed && point.Response != "" && !an.responses.owns(ctx, rq, point.Response) {
		result = resultIneligible
	}
	if result != resultResumed {
		an.resumer.results.Add(result)
		return false, errNotCarried(result)
	}
	an.resumer.results.Add(resultTaken)
	span.Note(ctx, span.EventResume, span.OutputTokens.Int(point.Answer))
	an.resumer.log.Info("a client continues a stream that another router has begun", "request", rq.call.RequestID, "tokens", point.Answer)
	t.carried, rq.before = s.follower, point.Answer
	if point.Again {
		rq.before = tokensOf(rq)
	}
	t.continueAt(rq, point)
	t.ask.Exclude = s.unable(point, t.ask.Exclude)
	return false, nil
}

// tokensOf is about how many tokens the client's events are, which have no ids.
func tokensOf(rq *request) int {
	var scan sse.Scanner
	scan.Reset(rq.parsed.Prompt.API, true)
	scan.Feed(rq.has)
	if n := scan.ContentEvents(); n > 0 {
		return rq.tokensIn(n)
	}
	return 0
}

// owns reports whether the caller made a response, as the fleet knows it.
func (s *responses) owns(ctx context.Context, rq *request, id string) bool {
	_, owner := s.pinned(ctx, rq.call.Tenant, id)
	return owner == pins.OwnerSelf || owner == pins.OwnerUnknown && rq.call.Tenant == ""
}

// giveEnd gives a client the end of a stream of which it has all else.
func (an *answers) giveEnd(d *delivery, end []byte) error {
	if err := d.to.Begin(http.StatusOK, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}); err != nil {
		return gone(err)
	}
	d.begun, d.status = true, http.StatusOK
	if len(end) == 0 {
		return nil
	}
	if err := d.to.Write(end); err != nil {
		return gone(err)
	}
	return nil
}

// leaving is the end of the router, for streams that their clients carry. It is safe for concurrent use.
type leaving struct {
	mu      sync.Mutex
	gone    bool
	streams map[*carrying]struct{}
}

// carrying is a stream that its client carries. finishes is set once no other router can continue it.
type carrying struct {
	end      context.CancelCauseFunc
	finishes atomic.Bool
}

// leave ends the streams with an error that says how they continue, and those that begin later, too.
func (l *leaving) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for one := range l.streams {
		if !one.finishes.Load() {
			one.end(errLeaving)
		}
	}
}

// continuesElsewhere reports whether another router can probably continue a stream that its client carries. Events of sampled messages that are no
// chats, and of sampled responses, have no ids, so it cannot continue them.
func continuesElsewhere(rq *request) bool {
	switch rq.or(rq.parsed).Continuation().Way() {
	case openai.WayText, openai.WayRepeat:
		return true
	case openai.WayTokens:
		return slices.ContainsFunc(rq.pool.Replicas, hasTokenRoutes) || rq.parsed.Continuation().Repeats()
	case openai.WayNone:
	}
	return false
}

// endWith returns a context that also ends with the router, where the client of a request carries its stream, and another router can continue
// it. Any other stream may end here.
func (l *leaving) endWith(ctx context.Context, rq *request) (context.Context, context.CancelFunc) {
	if !rq.keeps || !continuesElsewhere(rq) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &carrying{end: cancel}
	rq.carrying = one
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		cancel(errLeaving)
	}
	if l.streams == nil {
		l.streams = map[*carrying]struct{}{}
	}
	l.streams[one] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.streams, one)
		cancel(nil)
	}
}
