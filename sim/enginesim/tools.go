package enginesim

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// toolCall is the call that the model is made to write: of the function that tool_choice names,
// of the first one for "required", or, by the simulator's convention, of the function NAME when
// the last user message says "use NAME".
type toolCall struct {
	name, arguments string
	// the progress of a stream, by choice
	progress map[int]*toolProgress
}

type toolProgress struct {
	text  string // written so far
	named bool
	sent  int // bytes of the arguments
	id    string
}

type toolDefinition struct {
	Function struct {
		Name       string `json:"name"`
		Parameters struct {
			Properties map[string]struct {
				Type string           `json:"type"`
				Enum []jsontext.Value `json:"enum"`
			} `json:"properties"`
		} `json:"parameters"`
	} `json:"function"`
}

func (d *dialect) toolCall(req *chatRequest) *toolCall {
	name := wantedTool(req)
	if name == "" || d.cfg.NoParser {
		return nil
	}
	for _, raw := range req.Tools {
		var def toolDefinition
		if json.Unmarshal(raw, &def) == nil && def.Function.Name == name {
			return &toolCall{name: name, arguments: def.arguments(), progress: map[int]*toolProgress{}}
		}
	}
	return nil
}

// wantedTool names the function to call, or is empty.
func wantedTool(req *chatRequest) string {
	if len(req.Tools) == 0 {
		return ""
	}
	var named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(req.ToolChoice, &named) == nil && named.Function.Name != "" {
		return named.Function.Name
	}
	var names []string
	for _, raw := range req.Tools {
		var def toolDefinition
		if json.Unmarshal(raw, &def) == nil {
			names = append(names, def.Function.Name)
		}
	}
	switch string(req.ToolChoice) {
	case `"none"`:
		return ""
	case `"required"`:
		if len(names) > 0 {
			return names[0]
		}
	}
	last := ""
	for _, m := range req.Messages {
		switch m.Role {
		case "user":
			last = string(m.Content)
		case "tool":
			last = "" // answered already
		}
	}
	for _, n := range names {
		if n != "" && strings.Contains(last, "use "+n) {
			return n
		}
	}
	return ""
}

// arguments makes up a value for every parameter.
func (d toolDefinition) arguments() string {
	props := d.Function.Parameters.Properties
	var b strings.Builder
	b.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(props)) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(quote(nil, name))
		b.WriteString(": ")
		p := props[name]
		switch {
		case len(p.Enum) > 0:
			b.Write(p.Enum[0])
		case p.Type == "integer" || p.Type == "number":
			b.WriteString("7")
		case p.Type == "boolean":
			b.WriteString("true")
		case p.Type == "array":
			b.WriteString("[]")
		case p.Type == "object":
			b.WriteString("{}")
		default:
			b.Write(quote(nil, vocab.Word(uint64(len(name)))))
		}
	}
	b.WriteByte('}')
	return b.String()
}

// take notes the part of the call that d adds: begins is set with the function's name, more are arguments.
func (t *toolCall) take(ch *choice, d delta) (p *toolProgress, begins bool, more string) {
	p = t.progress[ch.index]
	if p == nil {
		p = &toolProgress{id: "chatcmpl-tool-" + ch.callID}
		t.progress[ch.index] = p
	}
	p.text += d.text
	head := len(vocab.CallHead(t.name))
	if len(p.text) < head {
		return p, false, ""
	}
	args := p.text[head:min(len(p.text), head+len(t.arguments))]
	more = args[p.sent:]
	p.sent = len(args)
	begins = !p.named
	p.named = true
	return p, begins, more
}

// delta writes the part of the call that d adds: first the function's name, then arguments.
func (t *toolCall) delta(ch *choice, d delta) text {
	p, begins, more := t.take(ch, d)
	if begins {
		b := text(`"content":null,"tool_calls":[{"id":"` + p.id + `","type":"function","index":0,"function":{"name":`).str(t.name)
		if more != "" { // several tokens at once: the reader was late
			b = b.raw(`,"arguments":`).str(more)
		}
		return b.raw(`}}]`)
	}
	if more == "" {
		return nil
	}
	return text(`"tool_calls":[{"index":0,"function":{"arguments":`).str(more).raw(`}}]`)
}

// pin gives the call of a choice the id that its client has.
func (t *toolCall) pin(ch *choice, id string) {
	if t.progress[ch.index] == nil {
		t.progress[ch.index] = &toolProgress{}
	}
	t.progress[ch.index].id = id
}

type wholeCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function wholeCallFun `json:"function"`
}

type wholeCallFun struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (t *toolCall) calls(ch *choice) []wholeCall {
	return []wholeCall{{ID: "chatcmpl-tool-" + ch.callID, Type: "function", Function: wholeCallFun{t.name, t.arguments}}}
}
