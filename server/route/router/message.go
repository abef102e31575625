package router

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
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

// longAnswer is the limit of tokens from which on an answer in one piece is requested as a stream: a shorter one is soon written again.
const longAnswer = 64

// askStreamed prepares an unstreamed request to be sent as a stream, where another replica could continue its answer as text. It must be called after the
// body is final.
func (c *standIn) askStreamed(rq *request) {
	if !rq.set.ResumeUnstreamed || rq.parsed.Stream || rq.call.Route != openai.RouteChat && rq.call.Route != openai.RouteCompletions || rq.upload != nil || len(rq.pool.Replicas) < 2 {
		return
	}
	if limit := rq.parsed.AnswerLimit(); limit > 0 && limit < longAnswer {
		return
	}
	if c.streamed = openai.Streamed(rq.parsed, rq.pool.Served); c.streamed != nil && rq.way() != openai.WayText {
		c.streamed = nil
	}
}
