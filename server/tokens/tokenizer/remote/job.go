package remote

import (
	"bytes"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Op is the question of a Job.
type Op uint8

// The operations.
const (
	// OpPrompt wants the ids of Prompt (chat, text or batch).
	OpPrompt Op = iota
	// OpText wants the ids of Text through /tokenize, special tokens as Special says.
	OpText
	// OpDetokenize wants the text of IDs.
	OpDetokenize
	// opProbe checks that the tokenizer answers.
	opProbe
)

// Job is one question to a tokenizer.
type Job struct {
	Op    Op
	Model string
	// Tenant owns the prompt; empty when callers need no key.
	Tenant string
	// Prompt is in the form of the chat or completions route; nil when only Native is exact.
	Prompt *prompt.Prompt
	// Native is the prompt in the client's own format, when that is another one and the replica may know it.
	Native *prompt.Prompt
	// TemplateDefaults is the engine's --default-chat-template-kwargs as a JSON object; used for
	// the versions with a /tokenize that does not apply it by itself (0.14 to 0.17).
	TemplateDefaults []byte
	// DropToolsOnNone mirrors --exclude-tools-when-tool-choice-none.
	DropToolsOnNone bool
	// NeedMedia refuses answers that cannot identify the media items.
	NeedMedia bool

	Text    string
	Special *bool // nil: the engine's default
	IDs     []uint32
}

// beams reports whether the prompt is for a beam search, which the render routes refuse and the routes that
// generate serve.
func (j *Job) beams() bool {
	v := j.Prompt.Field("use_beam_search")
	return !rawjson.IsNull(v) && string(v) != "false"
}

// size is the rough cost of the question, for learning how long such questions take.
func (j *Job) size() int {
	switch j.Op {
	case OpText:
		return len(j.Text)
	case OpDetokenize:
		return 4 * len(j.IDs)
	case opProbe:
		return 0
	case OpPrompt:
	}
	if j.Prompt == nil {
		return len(j.Native.Body)
	}
	n := len(j.Prompt.Text)
	for _, t := range j.Prompt.Texts {
		n += len(t)
	}
	for _, m := range j.Prompt.Messages {
		n += len(m)
	}
	return n
}

// origin names the question by its content.
func (j *Job) origin(m *poison.Memory) retry.Origin {
	if j.Op == OpDetokenize {
		return m.Origin(j.Tenant, rawjson.AppendUint32s(nil, j.IDs), j.Model, "ids")
	}
	parts, body := []string{j.Model, j.Text}, []byte(nil)
	for _, p := range []*prompt.Prompt{j.Prompt, j.Native} {
		if p == nil {
			continue
		}
		parts = append(append(parts, p.Text), p.Texts...)
		if body = p.Body; body == nil {
			body = bytes.Join(p.Messages, []byte{','})
		}
	}
	return m.Origin(j.Tenant, body, parts...)
}

// request gives path and body for an endpoint; render selects one of the two forms.
func (j *Job) request(e *endpoint, render bool) (string, []byte, error) {
	switch j.Op {
	case opProbe:
		return "/tokenize", []byte(`{"prompt":"","add_special_tokens":false}`), nil
	case OpDetokenize:
		b := append([]byte(`{"model":`), rawjson.AppendString(nil, j.Model)...)
		b = append(b, `,"tokens":`...)
		return "/detokenize", append(rawjson.AppendUint32s(b, j.IDs), '}'), nil
	case OpText:
		return "/tokenize", textBody(j.Model, j.Text, specialField(j.Special)), nil
	case OpPrompt:
	}
	p := j.Prompt
	switch p.Kind {
	case prompt.KindChat:
		if render {
			return "/v1/chat/completions/render", renderBody(p, j.Model), nil
		}
		b, err := j.chatBody(e)
		return "/tokenize", b, err
	case prompt.KindText, prompt.KindBatch:
		if render {
			return "/v1/completions/render", renderBody(p, j.Model), nil
		}
		return "/tokenize", textBody(j.Model, p.Text, p.Field("add_special_tokens")), nil
	case prompt.KindNone, prompt.KindIDs, prompt.KindBatchIDs:
	}
	return "", nil, &Fault{Kind: KindUnmappable}
}

func specialField(special *bool) []byte {
	if special == nil {
		return nil
	}
	return strconv.AppendBool(nil, *special)
}

func textBody(model, text string, special []byte) []byte {
	b := make([]byte, 0, len(text)+len(text)/16+len(model)+64)
	b = append(b, `{"model":`...)
	b = rawjson.AppendString(b, model)
	b = append(b, `,"prompt":`...)
	b = rawjson.AppendString(b, text)
	b = appendField(b, "add_special_tokens", special)
	return append(b, '}')
}

func appendField(b []byte, name string, value []byte) []byte {
	if rawjson.IsNull(value) {
		return b
	}
	b = append(b, ',')
	b = rawjson.AppendString(b, name)
	b = append(b, ':')
	return append(b, value...)
}

// renderBody is the client's body, unchanged but for the model's name. A prompt without a body
// (a part of a conversation) is written from its messages and fields.
func renderBody(p *prompt.Prompt, model string) []byte {
	if p.Body != nil {
		if b := withModel(p.Body, model); b != nil {
			return b
		}
	}
	b := append([]byte(`{"model":`), rawjson.AppendString(nil, model)...)
	if p.Kind == prompt.KindChat {
		b = append(b, `,"messages":[`...)
		b = append(b, bytes.Join(p.Messages, []byte{','})...)
		b = append(b, ']')
	} else {
		b = append(b, `,"prompt":`...)
		b = appendTexts(b, p)
	}
	for _, f := range p.Fields {
		if f.Name != "model" && f.Name != "messages" && f.Name != "prompt" {
			b = appendField(b, f.Name, f.Value)
		}
	}
	return append(b, '}')
}

func appendTexts(b []byte, p *prompt.Prompt) []byte {
	if p.Kind == prompt.KindText {
		return rawjson.AppendString(b, p.Text)
	}
	b = append(b, '[')
	for i, t := range p.Texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, t)
	}
	return append(b, ']')
}

// withModel returns the body with its model's name replaced, the body itself when it is right
// already, or nil when the body cannot be read.
func withModel(body []byte, model string) []byte {
	var value []byte
	if err := rawjson.Members(body, func(key string, v []byte) bool {
		if key == "model" {
			value = v
		}
		return true
	}); err != nil {
		return nil
	}
	quoted := rawjson.AppendString(nil, model)
	if value == nil {
		at := rawjson.Space(body, 0) + 1
		out := append(make([]byte, 0, len(body)+len(quoted)+10), body[:at]...)
		out = append(append(out, `"model":`...), quoted...)
		if next := rawjson.Space(body, at); body[next] != '}' {
			out = append(out, ',')
		}
		return append(out, body[at:]...)
	}
	if bytes.Equal(value, quoted) {
		return body
	}
	at := cap(body) - cap(value) // value is a slice of body
	out := append(make([]byte, 0, len(body)+len(quoted)), body[:at]...)
	out = append(out, quoted...)
	return append(out, body[at+len(value):]...)
}
