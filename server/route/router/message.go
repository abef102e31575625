package router

import (
	"errors"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// translate makes a chat of a streamed message that could not be continued otherwise. It must be called after the body is final.
func (c *standIn) translate(rq *request) {
	if rq.call.Route != openai.RouteMessages || !rq.parsed.Stream || !rq.set.ResumeMessages || len(rq.pool.Replicas) < 2 && !rq.keeps || rq.way() != openai.WayNone {
		return
	}
	for _, r := range rq.pool.Replicas {
		if !answersChat(r) {
			continue
		}
		body, ok := messages.Chat(&rq.parsed.Prompt, rq.body)
		if !ok {
			return
		}
		chat, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: body})
		if err != nil {
			return
		}
		if c.chat = chat; rq.way() == openai.WayNone {
			c.chat = nil
		}
		return
	}
}

// answersChat reports whether a replica answers the chat of a message with the tokens of the message.
func answersChat(r *replica.Replica) bool { return hasTokenRoutes(r) && messages.Serves(r.Version) }

// rejectsStandIn reports whether a replica rejected a request in place of the client's, or answered it with something else than a stream. The client's own is
// sent then, and the client gets the engine's words about that. A status that only says that the replica takes no request now is no rejection.
func (p *part) rejectsStandIn(resp *upstream.Response) bool {
	if !p.asChat && p.whole == nil {
		return false
	}
	switch resp.Status {
	case http.StatusOK:
		return mediaType(resp.Header) != "text/event-stream"
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// drop has the client's request sent unchanged from now on.
func (c *standIn) drop(p *part) {
	c.clear()
	p.follower, p.asChat, p.whole = nil, false, nil
}

// again reports whether the client's request is sent unchanged after an attempt that ended with f, because its answer was to another request.
// That attempt counts as none.
func (c *standIn) again(t *tries, f *failure) bool {
	if f.public == nil || !errors.Is(f.public, resume.ErrNotTranslated) && !errors.Is(f.public, resume.ErrNotWhole) || c.chat == nil && c.streamed == nil {
		return false
	}
	c.clear()
	t.ask.Attempt++
	t.passed++
	return true
}
