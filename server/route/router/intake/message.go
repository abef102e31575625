package intake

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// translate makes a chat of a streamed message that could not be continued otherwise. It must be called after the body is final.
func (c *standIn) translate(rq *Request) {
	if rq.Call.Route != openai.RouteMessages || !rq.Parsed.Stream || !rq.Settings.ResumeMessages || len(rq.Pool.Replicas) < 2 && !rq.Keeps || rq.Way() != openai.WayNone {
		return
	}
	for _, r := range rq.Pool.Replicas {
		if !AnswersChat(r) {
			continue
		}
		body, ok := messages.Chat(&rq.Parsed.Prompt, rq.Body)
		if !ok {
			return
		}
		chat, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: body})
		if err != nil {
			return
		}
		if c.Chat = chat; rq.Way() == openai.WayNone {
			c.Chat = nil
		}
		return
	}
}

// AnswersChat reports whether a replica answers the chat of a message with the tokens of the message.
func AnswersChat(r *replica.Replica) bool { return HasTokenRoutes(r) && messages.Serves(r.Version) }

// longAnswer is the limit of tokens from which on an answer in one piece is requested as a stream: a shorter one is soon written again.
const longAnswer = 64

// askStreamed prepares an unstreamed request to be sent as a stream, where another replica could continue its answer. It must be called after the
// body is final.
func (c *standIn) askStreamed(rq *Request) {
	if !rq.Settings.ResumeUnstreamed || rq.Parsed.Stream || rq.Call.Route != openai.RouteChat && rq.Call.Route != openai.RouteCompletions || rq.Upload != nil || len(rq.Pool.Replicas) < 2 {
		return
	}
	if limit := rq.Parsed.AnswerLimit(); limit > 0 && limit < longAnswer {
		return
	}
	if c.Streamed = openai.Streamed(rq.Parsed, rq.Pool.Served); c.Streamed != nil && !rq.mayFollow() {
		c.Streamed = nil
	}
}

// HasTools reports whether the request has tools.
func (rq *Request) HasTools() bool { return len(rq.Parsed.Raw("tools")) > len("[]") }
