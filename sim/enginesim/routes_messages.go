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
	ToolChoice    struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"tool_choice"`
	CacheSalt string `json:"cache_salt"`
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
	switch req.ToolChoice.Type {
	case "none":
		chat.ToolChoice = jsontext.Value(`"none"`)
	case "any":
		chat.ToolChoice = jsontext.Value(`"required"`)
	case "tool":
		chat.ToolChoice = jsontext.Value(text(`{"type":"function","function":{"name":`).str(req.ToolChoice.Name).raw(`}}`))
	}
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
			Description *string        `json:"description"`
			Schema      jsontext.Value `json:"input_schema"`
		}
		if json.Unmarshal(raw, &t) != nil {
			continue
		}
		if len(t.Schema) == 0 {
			t.Schema = jsontext.Value("{}")
		}
		b := text(`{"type":"function","function":{"name":`).str(t.Name)
		if t.Description != nil {
			b = b.raw(`,"description":`).str(*t.Description)
		}
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
	says := parserFor(&l.dialect, chat, &p)
	l.answer(c, &chat.sampling, "chatcmpl-", []promptIDs{p}, func(g *generation) bool {
		a := &messageAnswer{g: g, says: says}
		if chat.Stream {
			return a.stream()
		}
		return g.finished() && a.whole()
	})
}

// messageAnswer writes one message.
type messageAnswer struct {
	g    *generation
	says *parser
	s    *stream
	// open is the kind of the block that is open, empty when none is; index its number, or the next one's.
	open  string
	index int
	call  string // the id of the open call
}

// whole answers without a stream.
func (a *messageAnswer) whole() bool {
	g, ch := a.g, a.g.choices[0]
	var content []map[string]any
	thought, said := a.says.whole(ch)
	if thought != "" {
		content = append(content, map[string]any{"type": "thinking", "thinking": thought, "signature": g.l.newID() + g.l.newID()})
	}
	if a.says.called(ch) {
		call := a.says.tool.calls(ch)[0]
		content = append(content, map[string]any{"type": "tool_use", "id": call.ID, "name": call.Function.Name, "input": jsontext.Value(call.Function.Arguments)})
	} else {
		content = append(content, map[string]any{"type": "text", "text": said})
	}
	g.c.reply(http.StatusOK, struct {
		ID      string           `json:"id"`
		Type    string           `json:"type"`
		Role    string           `json:"role"`
		Content []map[string]any `json:"content"`
		Model   string           `json:"model"`
		Reason  string           `json:"stop_reason"`
		Usage   anthropicUsage   `json:"usage"`
	}{g.id, "message", "assistant", content, g.s.Model, a.reason(), g.anthropicUsage()})
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

// reason is the stop reason.
func (a *messageAnswer) reason() string {
	ch := a.g.choices[0]
	switch {
	case ch.finish == "length":
		return "max_tokens"
	case a.says.called(ch):
		return "tool_use"
	case ch.stop != nil:
		return "stop_sequence"
	}
	return "end_turn"
}

func (a *messageAnswer) stream() bool {
	modern := a.g.l.features.has(modern)
	s, ok := a.g.stream(a.opening, func(_ *stream, ch *choice, d delta) {
		for _, p := range a.says.pieces(ch, d) {
			a.piece(&p)
		}
	})
	if !ok {
		return false
	}
	end := map[string]any{"stop_reason": a.reason()}
	if modern {
		end["stop_sequence"] = nil
		if text, ok := a.g.choices[0].stop.(string); ok {
			end["stop_sequence"] = text
		}
	}
	a.close()
	s.value("message_delta", map[string]any{"type": "message_delta", "delta": end, "usage": a.g.anthropicUsage()})
	s.value("message_stop", map[string]string{"type": "message_stop"})
	if modern {
		s.send()
	} else {
		s.done() // 0.12.0 ends with OpenAI's mark
	}
	return true
}

func (a *messageAnswer) opening(s *stream) {
	a.s = s
	message := map[string]any{"id": a.g.id, "content": []int{}, "model": a.g.s.Model}
	if a.g.l.features.has(modern) {
		message["type"], message["role"], message["stop_reason"], message["stop_sequence"] = "message", "assistant", nil, nil
		message["usage"] = anthropicUsage{InputTokens: a.g.promptTokens}
	}
	s.value("message_start", map[string]any{"type": "message_start", "message": message})
}

// piece writes the events of one piece: those that open its block, and its delta.
func (a *messageAnswer) piece(p *piece) {
	switch p.kind {
	case pieceThought:
		a.block("thinking", map[string]any{"type": "thinking", "thinking": ""})
		a.delta("thinking_delta", "thinking", p.text)
	case pieceText:
		a.block("text", map[string]any{"type": "text", "text": ""})
		a.delta("text_delta", "text", p.text)
	case pieceCall:
		if a.call != p.id {
			a.close()
			a.call = p.id
		}
		a.block("tool_use", map[string]any{"type": "tool_use", "id": p.id, "name": a.says.tool.name, "input": map[string]any{}})
		a.delta("input_json_delta", "partial_json", p.text)
	}
}

func (a *messageAnswer) block(kind string, block map[string]any) {
	if a.open == kind {
		return
	}
	a.close()
	a.open = kind
	a.s.value("content_block_start", map[string]any{"type": "content_block_start", "content_block": block, "index": a.index})
}

func (a *messageAnswer) delta(kind, member, more string) {
	if more != "" {
		a.s.value("content_block_delta", map[string]any{"type": "content_block_delta", "delta": map[string]string{"type": kind, member: more}, "index": a.index})
	}
}

// close closes the open block. A thought is signed.
func (a *messageAnswer) close() {
	switch a.open {
	case "":
		return
	case "thinking":
		a.delta("signature_delta", "signature", a.g.l.newID()+a.g.l.newID())
	}
	a.s.value("content_block_stop", map[string]any{"type": "content_block_stop", "index": a.index})
	a.open = ""
	a.index++
}
