package attempt

import (
	"errors"
	"net/http"

	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// rejectsStandIn reports whether a replica rejected a request in place of the client's, or answered it with something else than a stream. The client's own is
// sent then, and the client gets the engine's words about that. A status that only says that the replica takes no request now is no rejection.
func (p *part) rejectsStandIn(resp *upstream.Response) bool {
	if !p.asChat && p.whole == nil {
		return false
	}
	switch resp.Status {
	case http.StatusOK:
		return MediaType(resp.Header) != "text/event-stream"
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// drop has the client's request sent unchanged from now on.
func (p *part) drop(rq *intake.Request) {
	rq.Clear()
	p.follower, p.asChat, p.whole = nil, false, nil
}

// Unchanged reports whether the client's request is sent unchanged after an attempt that ended with f, because its answer was to another request.
// That attempt counts as none.
func (t *Tries) Unchanged(rq *intake.Request, f *Failure) bool {
	if f.Public == nil || !errors.Is(f.Public, resume.ErrNotTranslated) && !errors.Is(f.Public, resume.ErrNotWhole) || rq.Chat == nil && rq.Streamed == nil {
		return false
	}
	rq.Clear()
	t.Ask.Attempt++
	t.passed++
	return true
}
