package convert

import (
	"bytes"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Chat returns the prompt in chat form, or false when there is no exact one. A prompt that is
// in the form of the chat or completions route is returned as it is.
func Chat(p *prompt.Prompt) (*prompt.Prompt, bool) {
	switch p.API {
	case prompt.APIMessages:
		return fromMessages(p)
	case prompt.APIResponses:
		return fromResponses(p)
	case prompt.APIChat, prompt.APICompletions, prompt.APIOther:
	}
	return p, true
}

// builder collects the chat form.
type builder struct {
	out prompt.Prompt
	ok  bool
}

func newBuilder(p *prompt.Prompt) *builder {
	b := &builder{out: *p, ok: true}
	b.out.Kind, b.out.API, b.out.Body, b.out.Text = prompt.KindChat, prompt.APIChat, nil, ""
	b.out.Digest = prompt.Digest{}
	b.out.Messages = make([][]byte, 0, len(p.Messages)+1)
	b.out.Fields = nil
	return b
}

func (b *builder) done() (*prompt.Prompt, bool) {
	if !b.ok || len(b.out.Messages) == 0 {
		return nil, false
	}
	return &b.out, true
}

func (b *builder) field(name string, value []byte) {
	if !rawjson.IsNull(value) {
		b.out.Fields = append(b.out.Fields, prompt.Field{Name: name, Value: value})
	}
}

// message appends a message with members in raw JSON, given as name and value in turn.
func (b *builder) message(role string, members ...[]byte) {
	m := append([]byte(`{"role":`), rawjson.AppendString(nil, role)...)
	for i := 0; i+1 < len(members); i += 2 {
		m = append(m, ',')
		m = rawjson.AppendString(m, string(members[i]))
		m = append(m, ':')
		m = append(m, members[i+1]...)
	}
	b.out.Messages = append(b.out.Messages, append(m, '}'))
}

var content = []byte("content")

// fromResponses maps the plain part of the Responses API: instructions, a text or messages of
// text. Tools, stored responses, reasoning items and gpt-oss (which has a prompt format of its
// own) have no exact chat form.
func fromResponses(p *prompt.Prompt) (*prompt.Prompt, bool) {
	if strings.Contains(strings.ToLower(p.Model), "gpt-oss") || p.Body == nil {
		return nil, false
	}
	b := newBuilder(p)
	err := rawjson.Members(p.Body, func(key string, v []byte) bool {
		if rawjson.IsNull(v) {
			return true
		}
		switch key {
		case "instructions":
			if v[0] != '"' {
				b.ok = false
			} else if string(v) != `""` {
				b.message("system", content, v)
			}
		case "tools":
			b.ok = b.ok && string(v) == "[]"
		case "previous_response_id", "previous_input_messages", "prompt", "reasoning", "conversation", "truncation", "text":
			b.ok = b.ok && (key == "truncation" && string(v) == `"disabled"` || key == "text" && plainText(v))
		case "chat_template_kwargs":
			b.field(key, v)
		}
		return b.ok
	})
	if err != nil || !b.ok {
		return nil, false
	}
	if p.Kind == prompt.KindText {
		b.message("user", content, rawjson.AppendString(nil, p.Text))
		return b.done()
	}
	for _, item := range p.Messages {
		b.responseItem(item)
	}
	return b.done()
}

// plainText reports whether the text setting asks for no format.
func plainText(v []byte) bool {
	format := rawjson.Member(v, "format")
	return rawjson.IsNull(format) || string(rawjson.Member(format, "type")) == `"text"`
}

// responseItem maps a message of text.
func (b *builder) responseItem(item []byte) {
	kind, _ := rawjson.Unquote(rawjson.Member(item, "type")) // absent means message
	role, err := rawjson.Unquote(rawjson.Member(item, "role"))
	status := rawjson.Member(item, "status")
	if err != nil || kind != "" && kind != "message" || string(status) == `"in_progress"` || string(status) == `"incomplete"` {
		b.ok = false
		return
	}
	value := rawjson.Member(item, "content")
	if len(value) == 0 || value[0] != '"' {
		text, only := onlyText(value, "input_text")
		if !only || role == "assistant" {
			b.ok = false
			return
		}
		value = append(append([]byte(`[{"type":"text","text":`), text...), "}]"...)
	}
	b.message(role, content, value)
}

// onlyText returns the raw text of a list of one part of the kind.
func onlyText(list []byte, kind string) (text []byte, ok bool) {
	n := 0
	err := rawjson.Elements(list, func(part []byte) bool {
		n++
		text = rawjson.Member(part, "text")
		ok = string(rawjson.Member(part, "type")) == `"`+kind+`"` && len(text) > 0 && text[0] == '"'
		return true
	})
	return text, ok && n == 1 && err == nil
}

// joinTexts decodes and joins the texts of a list's text parts, leaving out the parts that skip names.
func joinTexts(list []byte, sep string, skip func(string) bool) (string, bool) {
	var texts []string
	ok := true
	err := rawjson.Elements(list, func(part []byte) bool {
		if !bytes.Equal(rawjson.Member(part, "type"), []byte(`"text"`)) {
			ok = false
			return false
		}
		text, err := rawjson.Unquote(rawjson.Member(part, "text"))
		if err != nil {
			ok = false
			return false
		}
		if !skip(text) {
			texts = append(texts, text)
		}
		return true
	})
	return strings.Join(texts, sep), ok && err == nil
}
