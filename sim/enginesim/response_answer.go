package enginesim

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// responseTools rewrites tool definitions into the form of chat.
func responseTools(list []jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	for _, raw := range list {
		var t struct {
			Type       string         `json:"type"`
			Name       string         `json:"name"`
			Parameters jsontext.Value `json:"parameters"`
		}
		if json.Unmarshal(raw, &t) != nil || t.Type != "function" || t.Name == "" {
			out = append(out, raw)
			continue
		}
		if len(t.Parameters) == 0 {
			t.Parameters = jsontext.Value("{}")
		}
		b := text(`{"type":"function","function":{"name":`).str(t.Name).raw(`,"parameters":`)
		out = append(out, jsontext.Value(append(b, t.Parameters...).raw(`}}`)))
	}
	return out
}

// responseChoice rewrites a tool choice that names a function into the form of chat.
func responseChoice(raw jsontext.Value) jsontext.Value {
	var named struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(raw, &named) != nil || named.Name == "" {
		return raw
	}
	return jsontext.Value(text(`{"type":"function","function":{"name":`).str(named.Name).raw(`}}`))
}

// responseAnswer writes one response.
type responseAnswer struct {
	l     *life
	g     *generation
	req   *responseRequest
	turns []vocab.Message
	says  *parser
	store bool
	body  responseBody
	responseStream
}

// responseStream is how far the events of a response are.
type responseStream struct {
	s   *stream
	seq int
	// open is the item that is open; nil when none is. done are those before it.
	open *openItem
	done []any
}

// openItem is an item while it is written.
type openItem struct {
	kind     pieceKind
	id, call string
	text     string
	index    int
}

func (a *responseAnswer) begin(g *generation, model string) {
	a.g, a.done = g, []any{}
	id := a.req.RequestID // as it is
	if id == "" {
		id = "resp_" + g.id
	}
	tools := a.req.Tools
	if tools == nil {
		tools = []jsontext.Value{}
	}
	a.body = responseBody{
		ID: id, CreatedAt: g.created, Instructions: a.req.Instructions, Model: model, Object: "response",
		Output: []any{}, responseParameters: responseParameters{ParallelToolCalls: true, Temperature: 1, ToolChoice: "auto", Tools: tools, TopP: 1},
		MaxOutputTokens: a.req.MaxOutputTokens, PreviousResponseID: a.req.PreviousResponseID,
		ServiceTier: "auto", Status: "in_progress", Truncation: "disabled",
	}
}

// output is the answer as items, when it was not streamed.
func (a *responseAnswer) output() []any {
	ch := a.g.choices[0]
	thought, said := a.says.whole(ch)
	var items []any
	if thought != "" {
		items = append(items, a.item(&openItem{kind: pieceThought, id: a.l.newID(), text: thought}, "completed"))
	}
	if a.says.called(ch) {
		return append(items, a.item(&openItem{kind: pieceCall, id: "fc_" + a.l.newID(), call: "call_" + a.l.newID(), text: a.says.tool.arguments}, "completed"))
	}
	return append(items, a.item(&openItem{kind: pieceText, id: "msg_" + a.l.newID(), text: said}, "completed"))
}

// finish fills in the output and keeps the response; status overrides what the answer says.
func (a *responseAnswer) finish(status string) {
	ch := a.g.choices[0]
	u := a.g.usage(true)
	if a.body.Output = a.done; a.s == nil {
		a.body.Output = a.output()
	}
	a.body.Usage = &responseUsage{InputTokens: u.prompt, InputTokensDetails: cachedDetails{u.cached}, OutputTokens: u.completion, TotalTokens: u.prompt + u.completion}
	a.body.Status = "completed"
	if ch.finish == "length" && a.l.features.has(modern) {
		a.body.Status = "incomplete"
		a.body.IncompleteDetails = &incompleteDetails{"max_output_tokens"}
	}
	if status != "" {
		a.body.Status = status
	}
	if a.store {
		a.l.stored.put(&storedResponse{body: a.body, turns: a.turns})
	}
}

// responseThought and responseCall are the items that are no messages.
type responseThought struct {
	ID      string        `json:"id"`
	Content []thoughtPart `json:"content,omitempty"`
	Summary []struct{}    `json:"summary"`
	Status  string        `json:"status"`
	Type    string        `json:"type"`
}

type thoughtPart struct {
	Text string `json:"text"`
	Type string `json:"type"`
}

type responseCall struct {
	ID        string `json:"id"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Status    string `json:"status"`
	Type      string `json:"type"`
}

// item is an item as events and the response have it.
func (a *responseAnswer) item(o *openItem, status string) any {
	over := status == "completed"
	switch o.kind {
	case pieceThought:
		t := responseThought{ID: o.id, Summary: []struct{}{}, Status: status, Type: "reasoning"}
		if over {
			t.Content = []thoughtPart{{o.text, "reasoning_text"}}
		}
		return t
	case pieceCall:
		return responseCall{ID: o.id, CallID: o.call, Name: a.says.tool.name, Arguments: o.text, Status: status, Type: "function_call"}
	case pieceText:
	}
	content := []responsePart{}
	if over {
		content = append(content, responsePart{Annotations: []struct{}{}, Text: o.text, Type: "output_text"})
	}
	return responseItem{ID: o.id, Content: content, Role: "assistant", Status: status, Type: "message"}
}

// event sends one event with its number.
func (a *responseAnswer) event(name string, v map[string]any) {
	v["sequence_number"], v["type"] = a.seq, name
	a.seq++
	a.s.value(name, v)
}

func (a *responseAnswer) stream() bool {
	_, ok := a.g.stream(a.opening, func(_ *stream, ch *choice, d delta) {
		for _, p := range a.says.pieces(ch, d) {
			a.piece(&p)
		}
	})
	if ok {
		a.close()
		a.finish("")
		a.event("response.completed", map[string]any{"response": a.body})
		a.s.send()
	}
	return ok
}

// at names the place that an event is about.
func (a *responseAnswer) at(v map[string]any) map[string]any {
	v["item_id"], v["output_index"] = a.open.id, a.open.index
	if a.open.kind != pieceCall {
		v["content_index"] = 0
	}
	return v
}

func (a *responseAnswer) opening(s *stream) {
	a.s = s
	a.event("response.created", map[string]any{"response": a.body})
	a.event("response.in_progress", map[string]any{"response": a.body})
}

// part is the part of the open item, with its text.
func (a *responseAnswer) part(said string) any {
	if a.open.kind == pieceThought {
		return thoughtPart{said, "reasoning_text"}
	}
	return responsePart{Annotations: []struct{}{}, Text: said, Type: "output_text"}
}

// piece writes the events of one piece: those that open its item, and its delta.
func (a *responseAnswer) piece(p *piece) {
	if a.open == nil || a.open.kind != p.kind {
		a.close()
		a.open = &openItem{kind: p.kind, index: len(a.done), id: map[pieceKind]string{pieceThought: "rs_", pieceText: "msg_", pieceCall: "fc_"}[p.kind] + a.l.newID()}
		if p.kind == pieceCall {
			a.open.call = "call_" + a.l.newID()
		}
		a.event("response.output_item.added", map[string]any{"item": a.item(a.open, "in_progress"), "output_index": a.open.index})
		switch p.kind {
		case pieceThought:
			a.event("response.reasoning_part.added", a.at(map[string]any{"part": a.part("")}))
		case pieceText:
			a.event("response.content_part.added", a.at(map[string]any{"part": a.part("")}))
		case pieceCall:
		}
	}
	if p.text == "" {
		return
	}
	a.open.text += p.text
	switch p.kind {
	case pieceThought:
		a.event("response.reasoning_text.delta", a.at(map[string]any{"delta": p.text}))
	case pieceText:
		a.event("response.output_text.delta", a.at(map[string]any{"delta": p.text, "logprobs": []int{}}))
	case pieceCall:
		a.event("response.function_call_arguments.delta", a.at(map[string]any{"delta": p.text}))
	}
}

// close writes the events that end the open item.
func (a *responseAnswer) close() {
	o := a.open
	if o == nil {
		return
	}
	switch o.kind {
	case pieceThought:
		a.event("response.reasoning_text.done", a.at(map[string]any{"text": o.text}))
		a.event("response.reasoning_part.done", a.at(map[string]any{"part": a.part(o.text)}))
	case pieceText:
		a.event("response.output_text.done", a.at(map[string]any{"text": o.text, "logprobs": []int{}}))
		a.event("response.content_part.done", a.at(map[string]any{"part": a.part(o.text)}))
	case pieceCall:
		a.event("response.function_call_arguments.done", a.at(map[string]any{"arguments": o.text, "name": a.says.tool.name}))
	}
	item := a.item(o, "completed")
	a.event("response.output_item.done", map[string]any{"item": item, "output_index": o.index})
	a.done, a.open = append(a.done, item), nil
}
