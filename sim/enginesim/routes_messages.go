package enginesim

import (
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// messagesRequest is Anthropic's format.
type messagesRequest struct {
	Model         string           `json:"model"`
	Messages      []vocab.Message  `json:"messages"`
	System        jsontext.Value   `json:"system"`
	MaxTokens     *int             `json:"max_tokens"`
	StopSequences stringList       `json:"stop_sequences"`
	Stream        bool             `json:"stream"`
	Tools         []jsontext.Value `json:"tools"`
	CacheSalt     string           `json:"cache_salt"`
}

type anthropicUsage struct {
	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	Created      *int `json:"cache_creation_input_tokens,omitempty"`
	Read         *int `json:"cache_read_input_tokens,omitempty"`
}

// messagesChat turns the request into a chat request.
func (d *dialect) messagesChat(c *call) (*chatRequest, promptIDs, bool) {
	var req messagesRequest
	if !d.read(c, &req) {
		return nil, promptIDs{}, false
	}
	chat := &chatRequest{Messages: req.Messages, Tools: anthropicTools(req.Tools)}
	chat.Model, chat.MaxTokens, chat.Stream, chat.Stop = req.Model, req.MaxTokens, req.Stream, req.StopSequences
	if d.features.has(messagesSalt) {
		chat.CacheSalt = req.CacheSalt
	}
	if len(req.System) > 0 && string(req.System) != "null" {
		chat.Messages = append([]vocab.Message{{Role: "system", Content: req.System}}, req.Messages...)
	}
	p, bad := d.chatPrompt(chat)
	if bad != nil {
		bad.Anthropic = true
		d.fail(c, *bad)
		return nil, promptIDs{}, false
	}
	return chat, p, true
}

// anthropicTools rewrites tool definitions into OpenAI's form.
func anthropicTools(list []jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	for _, raw := range list {
		var t struct {
			Name        string         `json:"name"`
			Description string         `json:"description"`
			Schema      jsontext.Value `json:"input_schema"`
		}
		if json.Unmarshal(raw, &t) != nil {
			continue
		}
		if len(t.Schema) == 0 {
			t.Schema = jsontext.Value("{}")
		}
		b := text(`{"type":"function","function":{"name":`).str(t.Name).raw(`,"description":`).str(t.Description)
		out = append(out, jsontext.Value(append(b.raw(`,"parameters":`), t.Schema...).raw(`}}`)))
	}
	return out
}

func (d *dialect) messagesCount(c *call) {
	_, p, ok := d.messagesChat(c)
	if !ok {
		return
	}
	n := len(p.ids)
	c.reply(http.StatusOK, map[string]any{"input_tokens": n, "context_management": map[string]int{"original_input_tokens": n}})
}

func (l *life) messagesCreate(c *call) {
	chat, p, ok := l.messagesChat(c)
	if !ok {
		return
	}
	l.answer(c, &chat.sampling, "chatcmpl-", []promptIDs{p}, func(g *generation) bool {
		if chat.Stream {
			return g.messageStream()
		}
		return g.finished() && g.message()
	})
}

// message answers without a stream.
func (g *generation) message() bool {
	ch := g.choices[0]
	type block struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	g.c.reply(http.StatusOK, struct {
		ID      string         `json:"id"`
		Type    string         `json:"type"`
		Role    string         `json:"role"`
		Content []block        `json:"content"`
		Model   string         `json:"model"`
		Reason  string         `json:"stop_reason"`
		Usage   anthropicUsage `json:"usage"`
	}{g.id, "message", "assistant", []block{{"text", string(ch.text)}}, g.s.Model, anthropicReason(ch), g.anthropicUsage()})
	return true
}

// anthropicUsage counts the prompt in three parts: read from the cache, written into it, and the rest.
// Without token details the rest is the whole prompt, and the other two are not there.
func (g *generation) anthropicUsage() anthropicUsage {
	u := anthropicUsage{InputTokens: g.promptTokens, OutputTokens: g.outputTokens()}
	if g.l.features.has(modern) && g.l.reportsCache(g.cached()) {
		read, created := g.cached(), g.createdCache()
		u.InputTokens = max(0, g.promptTokens-read-created)
		u.Created, u.Read = &created, &read
	}
	return u
}

func anthropicReason(ch *choice) string {
	switch {
	case ch.finish == "length":
		return "max_tokens"
	case ch.stop != nil:
		return "stop_sequence"
	}
	return "end_turn"
}

func (g *generation) messageStream() bool {
	modern := g.l.features.has(modern)
	s, ok := g.stream(func(s *stream) {
		message := map[string]any{"id": g.id, "content": []int{}, "model": g.s.Model}
		if modern {
			message["type"], message["role"], message["stop_reason"], message["stop_sequence"] = "message", "assistant", nil, nil
			message["usage"] = anthropicUsage{InputTokens: g.promptTokens}
		}
		s.value("message_start", map[string]any{"type": "message_start", "message": message})
		s.value("content_block_start", map[string]any{"type": "content_block_start", "content_block": map[string]string{"type": "text", "text": ""}, "index": 0})
	}, func(s *stream, _ *choice, d delta) {
		if d.text != "" {
			s.value("content_block_delta", map[string]any{"type": "content_block_delta", "delta": map[string]string{"type": "text_delta", "text": d.text}, "index": 0})
		}
	})
	if !ok {
		return false
	}
	end := map[string]any{"stop_reason": anthropicReason(g.choices[0])}
	if modern {
		end["stop_sequence"] = nil
		if text, ok := g.choices[0].stop.(string); ok {
			end["stop_sequence"] = text
		}
	}
	s.value("content_block_stop", map[string]any{"type": "content_block_stop", "index": 0})
	s.value("message_delta", map[string]any{"type": "message_delta", "delta": end, "usage": g.anthropicUsage()})
	s.value("message_stop", map[string]string{"type": "message_stop"})
	if modern {
		s.send()
	} else {
		s.done() // 0.12.0 ends with OpenAI's mark
	}
	return true
}
