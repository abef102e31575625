package openai

import (
	"unsafe"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// PromptText is the prompt as plain text, the key of prefix-affinity: the prompt itself, the strings of
// a list of prompts, or the text of the messages, one after the other. Roles, tools and media are left out.
// It is empty where there is no text. It may share memory with the body.
func (r *Request) PromptText() string {
	p := &r.Prompt
	switch p.Kind {
	case prompt.KindText:
		if p.API != prompt.APIResponses || p.Field("instructions") == nil {
			return p.Text
		}
	case prompt.KindBatch, prompt.KindChat:
	case prompt.KindNone, prompt.KindIDs, prompt.KindBatchIDs:
		return ""
	}
	texts := p.Texts
	if p.Kind == prompt.KindText {
		texts = []string{p.Text}
	}
	size := 0
	for _, t := range texts {
		size += len(t)
	}
	for _, m := range p.Messages {
		size += len(m)
	}
	w := textWriter{out: make([]byte, 0, size)}
	for _, name := range [...]string{"system", "instructions"} { // templates put them first
		if raw := p.Field(name); raw != nil {
			w.s = rawjson.Scanner{Data: raw}
			w.content()
		}
	}
	for _, t := range texts {
		w.out = append(w.out, t...)
	}
	for _, m := range p.Messages {
		w.s = rawjson.Scanner{Data: m}
		w.message()
	}
	if len(w.out) == 0 {
		return ""
	}
	return unsafe.String(&w.out[0], len(w.out)) // nothing writes to it any more
}

// Opening is the text with which a conversation begins, up to its first message of a user: all turns of a conversation have the same one.
// It is empty for prompts that are no conversation.
func (r *Request) Opening() string {
	if r.Prompt.Kind != prompt.KindChat {
		return ""
	}
	var w textWriter
	for _, name := range [...]string{"system", "instructions"} {
		if raw := r.Prompt.Field(name); raw != nil {
			w.s = rawjson.Scanner{Data: raw}
			w.content()
		}
	}
	for _, m := range r.Prompt.Messages {
		w.s = rawjson.Scanner{Data: m}
		w.message()
		if isUsers(m) {
			return string(w.out)
		}
	}
	return ""
}

// isUsers reports whether a message is one of a user.
func isUsers(m []byte) (is bool) {
	s := rawjson.Scanner{Data: m}
	s.Members(func(name []byte, _ int) bool {
		if string(name) != "role" || s.Space() != '"' {
			return s.Skip()
		}
		t, ok := s.Text()
		is = string(t.Bytes()) == "user"
		return ok
	})
	return is
}

// textWriter collects the text of messages. A message that ends early contributes the text before its end.
type textWriter struct {
	s   rawjson.Scanner
	out []byte
}

// message takes the content of one message.
func (w *textWriter) message() bool {
	return w.s.Members(func(name []byte, _ int) bool {
		if string(name) == "content" {
			return w.content()
		}
		return w.s.Skip()
	})
}

// content takes a string, a list of strings and parts, or one part.
func (w *textWriter) content() bool {
	switch w.s.Space() {
	case '"':
		t, ok := w.s.Text()
		w.out = append(w.out, t.Bytes()...)
		return ok
	case '[':
		return w.s.Elements(func(int) bool { return w.content() })
	case '{':
		return w.s.Members(func(name []byte, _ int) bool {
			switch string(name) {
			case "text", "content":
				return w.content()
			}
			return w.s.Skip()
		})
	}
	return w.s.Skip()
}
