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

// asChat is a streamed message as the chat request that vLLM makes of it. Chunks of a chat have token ids; events of messages have
// none. The zero value is a request that is sent unchanged.
type asChat struct{ chat *openai.Request }

// translate makes a chat of a streamed message that could not be continued otherwise. It must be called after the body is final.
func (c *asChat) translate(rq *request) {
	if rq.call.Route != openai.RouteMessages || !rq.parsed.Stream || !rq.set.ResumeMessages || rq.has != nil || len(rq.pool.Replicas) < 2 || rq.way() != openai.WayNone {
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

// or returns the chat, or parsed when there is none: the request that another engine continues.
func (c *asChat) or(parsed *openai.Request) *openai.Request {
	if c.chat != nil {
		return c.chat
	}
	return parsed
}

// orBody returns the body of the chat, or body when there is none.
func (c *asChat) orBody(body []byte) []byte {
	if c.chat != nil {
		return c.chat.Body
	}
	return body
}

// rejectsChat reports whether a replica rejected the chat of a message, or answered it with something else than a stream. The message itself is
// sent then, and the client gets the engine's words about that. A status that only says that the replica takes no request now is no rejection.
func (p *part) rejectsChat(resp *upstream.Response) bool {
	if !p.asChat {
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

// drop has the message sent unchanged from now on.
func (c *asChat) drop(p *part) {
	c.chat, p.follower, p.asChat = nil, nil, false
}

// again reports whether the message is sent unchanged after an attempt that ended with f, because its answer was not the message's.
// That attempt counts as none.
func (c *asChat) again(t *tries, f *failure) bool {
	if c.chat == nil || f.public == nil || !errors.Is(f.public, resume.ErrNotTranslated) {
		return false
	}
	c.chat = nil
	t.ask.Attempt++
	t.passed++
	return true
}
