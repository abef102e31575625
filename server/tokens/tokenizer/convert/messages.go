package convert

import (
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// billing begins a system block that some clients send with a fresh value each time; the engine
// leaves it out.
const billing = "x-anthropic-billing-header"

// fromMessages maps the Messages API as the engine does: system blocks in front, tool results
// as messages of their own, thoughts as reasoning.
func fromMessages(p *prompt.Prompt) (*prompt.Prompt, bool) {
	if p.HasMedia || p.Body == nil {
		return nil, false
	}
	b := newBuilder(p)
	var system []byte
	var effort []byte
	err := rawjson.Members(p.Body, func(key string, v []byte) bool {
		switch key {
		case "system":
			system = v
		case "tools":
			b.tools(v)
		case "tool_choice":
			b.toolChoice(v)
		case "chat_template_kwargs":
			b.field(key, v)
		case "output_config":
			if !rawjson.IsNull(v) {
				effort = rawjson.Member(v, "effort")
			}
		}
		return b.ok
	})
	if err != nil || !b.ok {
		return nil, false
	}
	b.field("reasoning_effort", effort)
	b.system(system, p.Messages)
	for _, m := range p.Messages {
		b.anthropic(m)
	}
	return b.done()
}

func isBilling(text string) bool { return text == "" || strings.HasPrefix(text, billing) }

// system joins the system texts, also those among the messages, into one message.
func (b *builder) system(top []byte, messages [][]byte) {
	var all strings.Builder
	add := func(v []byte) {
		if rawjson.IsNull(v) {
			return
		}
		if v[0] == '"' {
			text, err := rawjson.Unquote(v)
			b.ok = b.ok && err == nil
			all.WriteString(text)
			return
		}
		text, ok := joinTexts(v, "", isBilling)
		b.ok = b.ok && ok
		all.WriteString(text)
	}
	add(top)
	for _, m := range messages {
		if string(rawjson.Member(m, "role")) == `"system"` {
			add(rawjson.Member(m, "content"))
		}
	}
	if all.Len() > 0 {
		b.message("system", content, rawjson.AppendString(nil, all.String()))
	}
}

// anthropic maps one message.
func (b *builder) anthropic(m []byte) {
	role, err := rawjson.Unquote(rawjson.Member(m, "role"))
	if role == "ctx" || role == "msg" {
		role = "user"
	}
	value := rawjson.Member(m, "content")
	switch {
	case err != nil || len(value) == 0 || role != "user" && role != "assistant" && role != "system":
		b.ok = false
		return
	case role == "system":
		return
	case value[0] == '"':
		b.message(role, content, value)
		return
	}
	blocks := blocks{b: b, role: role}
	if rawjson.Elements(value, blocks.add) != nil {
		b.ok = false
	}
	if b.ok {
		blocks.close()
	}
}

// blocks are the parts of one Anthropic message on their way to a chat message.
type blocks struct {
	b         *builder
	role      string
	texts     [][]byte
	calls     []byte
	reasoning string
	thought   bool
}

func (k *blocks) add(block []byte) bool {
	kind, _ := rawjson.Unquote(rawjson.Member(block, "type")) // an unreadable kind is unknown
	switch kind {
	case "text":
		if text := rawjson.Member(block, "text"); !rawjson.IsNull(text) && string(text) != `""` {
			k.texts = append(k.texts, text)
		}
	case "thinking":
		text, err := rawjson.Unquote(rawjson.Member(block, "thinking"))
		k.b.ok = k.b.ok && err == nil
		k.reasoning, k.thought = k.reasoning+text, true
	case "redacted_thinking":
	case "tool_use":
		k.call(block)
	case "tool_result":
		k.result(block)
	default:
		k.b.ok = false
	}
	return k.b.ok
}

func (k *blocks) call(block []byte) {
	id, name, input := rawjson.Member(block, "id"), rawjson.Member(block, "name"), rawjson.Member(block, "input")
	if rawjson.IsNull(input) {
		input = []byte("{}")
	}
	arguments, ok := pythonJSON(nil, input)
	if !ok || rawjson.IsNull(id) || rawjson.IsNull(name) {
		k.b.ok = false
		return
	}
	if k.calls != nil {
		k.calls = append(k.calls, ',')
	}
	k.calls = append(k.calls, `{"id":`...)
	k.calls = append(k.calls, id...)
	k.calls = append(k.calls, `,"type":"function","function":{"name":`...)
	k.calls = append(k.calls, name...)
	k.calls = append(k.calls, `,"arguments":`...)
	k.calls = rawjson.AppendString(k.calls, string(arguments))
	k.calls = append(k.calls, "}}"...)
}

// result becomes a message of its own, before the rest of the message that it stands in.
func (k *blocks) result(block []byte) {
	if k.role != "user" {
		k.b.ok = false
		return
	}
	id, value := rawjson.Member(block, "tool_use_id"), rawjson.Member(block, "content")
	if rawjson.IsNull(id) {
		id = []byte(`""`)
	}
	switch {
	case rawjson.IsNull(value):
		value = []byte(`""`)
	case value[0] != '"':
		text, ok := joinTexts(value, "\n", func(string) bool { return false })
		if !ok {
			k.b.ok = false
			return
		}
		value = rawjson.AppendString(nil, text)
	}
	k.b.message("tool", []byte("tool_call_id"), id, content, value)
}

// close appends the chat message, unless a user's message held nothing but tool results.
func (k *blocks) close() {
	var members [][]byte
	if k.thought {
		members = append(members, []byte("reasoning"), rawjson.AppendString(nil, k.reasoning))
	}
	if k.calls != nil {
		members = append(members, []byte("tool_calls"), append(append([]byte{'['}, k.calls...), ']'))
	}
	switch len(k.texts) {
	case 0:
		if k.role == "user" {
			return
		}
	case 1:
		members = append(members, content, k.texts[0])
	default:
		parts := []byte{'['}
		for i, t := range k.texts {
			if i > 0 {
				parts = append(parts, ',')
			}
			parts = append(append(append(parts, `{"type":"text","text":`...), t...), '}')
		}
		members = append(members, content, append(parts, ']'))
	}
	k.b.message(k.role, members...)
}

// tools maps tool definitions; a schema without a type is an object's.
func (b *builder) tools(v []byte) {
	if rawjson.IsNull(v) {
		return
	}
	out := []byte{'['}
	err := rawjson.Elements(v, func(tool []byte) bool {
		name, schema := rawjson.Member(tool, "name"), rawjson.Member(tool, "input_schema")
		if rawjson.IsNull(name) || len(schema) == 0 || schema[0] != '{' {
			b.ok = false
			return false
		}
		if rawjson.Member(schema, "type") == nil {
			rest := schema[:len(schema)-1]
			sep := `,"type":"object"}`
			if rawjson.Space(schema, 1) == len(schema)-1 {
				sep = `"type":"object"}`
			}
			schema = append(append([]byte(nil), rest...), sep...)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, `{"type":"function","function":{"name":`...), name...)
		if d := rawjson.Member(tool, "description"); !rawjson.IsNull(d) {
			out = append(append(out, `,"description":`...), d...)
		}
		out = append(append(append(out, `,"parameters":`...), schema...), "}}"...)
		return true
	})
	if err != nil || !b.ok {
		b.ok = false
		return
	}
	b.field("tools", append(out, ']'))
}

func (b *builder) toolChoice(v []byte) {
	if rawjson.IsNull(v) {
		return
	}
	switch kind, _ := rawjson.Unquote(rawjson.Member(v, "type")); kind { // unreadable is unknown
	case "auto":
		b.field("tool_choice", []byte(`"auto"`))
	case "any":
		b.field("tool_choice", []byte(`"required"`))
	case "none":
		b.field("tool_choice", []byte(`"none"`))
	case "tool":
		name := rawjson.Member(v, "name")
		if rawjson.IsNull(name) {
			b.ok = false
			return
		}
		choice := append([]byte(`{"type":"function","function":{"name":`), name...)
		b.field("tool_choice", append(choice, "}}"...))
	default:
		b.ok = false
	}
}
