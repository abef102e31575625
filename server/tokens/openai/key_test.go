package openai_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// The text that prefix-affinity goes by, normalised.
func TestPromptText(t *testing.T) {
	for name, c := range map[string]struct {
		route openai.Route
		body  string
		want  string
	}{
		"a chat":                {openai.RouteChat, `{"messages":[{"role":"user","content":"hello world"}]}`, "hello world"},
		"a completion":          {openai.RouteCompletions, `{"prompt":"hello world"}`, "hello world"},
		"a list of prompts":     {openai.RouteCompletions, `{"prompt":["hello ","world"]}`, "hello world"},
		"several messages":      {openai.RouteChat, `{"messages":[{"role":"system","content":"hello"},{"content":" world","role":"user"}]}`, "hello world"},
		"parts":                 {openai.RouteChat, `{"messages":[{"role":"user","content":[{"type":"text","text":"hello "},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"world"}]}]}`, "hello world"},
		"strings among parts":   {openai.RouteChat, `{"messages":[{"role":"user","content":["hello ","world"]}]}`, "hello world"},
		"one part":              {openai.RouteChat, `{"messages":[{"role":"user","content":{"text":"hello world"}}]}`, "hello world"},
		"nested content":        {openai.RouteChat, `{"messages":[{"role":"user","content":{"content":[{"text":"hello world"}]}}]}`, "hello world"},
		"escapes":               {openai.RouteChat, `{"messages":[{"role":"user","content":"hello\nw\u00f6rld"}]}`, "hello\nwörld"},
		"no content":            {openai.RouteChat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},{"role":"user","content":"hello world"}]}`, "hello world"},
		"a number":              {openai.RouteChat, `{"messages":[{"role":"user","content":7}]}`, ""},
		"media only":            {openai.RouteChat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}`, ""},
		"token ids":             {openai.RouteCompletions, `{"prompt":[1,2,3]}`, ""},
		"lists of token ids":    {openai.RouteCompletions, `{"prompt":[[1,2],[3]]}`, ""},
		"no key":                {openai.RouteChat, `{"model":"m"}`, ""},
		"Anthropic's system":    {openai.RouteMessages, `{"messages":[{"role":"user","content":"world"}],"system":[{"type":"text","text":"hello "}]}`, "hello world"},
		"instructions":          {openai.RouteResponses, `{"input":"world","instructions":"hello "}`, "hello world"},
		"input items":           {openai.RouteResponses, `{"input":[{"role":"user","content":[{"type":"input_text","text":"world"}]}],"instructions":"hello "}`, "hello world"},
		"cut in a later text":   {openai.RouteChat, `{"messages":[{"role":"system","content":"hello"},{"role":"user","content":" wor`, "hello"},
		"cut behind a prompt":   {openai.RouteCompletions, `{"prompt":"hello world","max_tok`, "hello world"},
		"cut inside the prompt": {openai.RouteCompletions, `{"prompt":"hello wor`, "hello wor"},
	} {
		r, err := openai.Read(openai.Params{Route: c.route, Body: []byte(c.body), Truncated: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := r.PromptText()
		if strings.HasPrefix(name, "cut") { // a cut may leave more: what can be read of the rest
			got = got[:min(len(got), len(c.want))]
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzPromptText(f *testing.F) {
	f.Add(`{"messages":[{"role":"user","content":[{"text":"a"},"b",{"content":"c"}]}]}`)
	f.Add(`{"input":[{"content":"a\u00e9"}],"instructions":"x"}`)
	f.Fuzz(func(t *testing.T, body string) {
		for _, truncated := range []bool{false, true} {
			r, err := openai.Read(openai.Params{Route: openai.RouteAny, Body: []byte(body), Truncated: truncated})
			if err != nil {
				continue
			}
			if text := r.PromptText(); len(text) > len(body)*3 {
				t.Errorf("%d bytes of text from a body of %d", len(text), len(body))
			}
		}
	})
}
