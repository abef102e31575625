package router

import (
	"context"
	"slices"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// leaving is the end of the router, for streams that their clients carry. It is safe for concurrent use.
type leaving struct {
	mu      sync.Mutex
	gone    bool
	streams map[*intake.Carrying]struct{}
}

// leave ends the streams with an error that says how they continue, and those that begin later, too.
func (l *leaving) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for one := range l.streams {
		if !one.Finishes.Load() {
			one.End(errLeaving)
		}
	}
}

// continuesElsewhere reports whether another router can probably continue a stream that its client carries. Events of sampled messages that are no
// chats, and of sampled responses, have no ids, so it cannot continue them.
func continuesElsewhere(rq *intake.Request) bool {
	switch rq.Or(rq.Parsed).Continuation().Way() {
	case openai.WayText, openai.WayRepeat:
		return true
	case openai.WayTokens:
		return slices.ContainsFunc(rq.Pool.Replicas, intake.HasTokenRoutes) || rq.Parsed.Continuation().Repeats()
	case openai.WayNone:
	}
	return false
}

// endWith returns a context that also ends with the router, where the client of a request carries its stream, and another router can continue
// it. Any other stream may end here.
func (l *leaving) endWith(ctx context.Context, rq *intake.Request) (context.Context, context.CancelFunc) {
	if !rq.Keeps || !continuesElsewhere(rq) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &intake.Carrying{End: cancel}
	rq.Carrying = one
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		cancel(errLeaving)
	}
	if l.streams == nil {
		l.streams = map[*intake.Carrying]struct{}{}
	}
	l.streams[one] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.streams, one)
		cancel(nil)
	}
}

var errLeaving = apierror.New(apierror.ShuttingDown, "the router is stopping: continue the stream at another one", nil)
