package convert_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/convert"
)

func read(t testing.TB, api prompt.API, body string) *prompt.Prompt {
	t.Helper()
	p := &prompt.Prompt{API: api, Kind: prompt.KindChat, Model: "m", Body: []byte(body)}
	var in struct {
		Messages []json.RawMessage `json:"messages"`
		Input    json.RawMessage   `json:"input"`
	}
	if err := json.Unmarshal(p.Body, &in); err != nil {
		return p
	}
	if json.Unmarshal(in.Input, &p.Text) == nil && p.Text != "" {
		p.Kind = prompt.KindText
	}
	_ = json.Unmarshal(in.Input, &in.Messages) // a string leaves them alone
	for _, m := range in.Messages {
		p.Messages = append(p.Messages, m)
	}
	return p
}

func TestChatForms(t *testing.T) {
	for _, tc := range []struct {
		name string
		api  prompt.API
		body string
		want string // messages, then fields; empty: there is no exact form
	}{
		{"text", prompt.APIMessages, `{"messages":[{"role":"user","content":"hi"}]}`, `[{"role":"user","content":"hi"}]`},
		{"system text", prompt.APIMessages, `{"system":"be kind","messages":[{"role":"user","content":"hi"}]}`,
			`[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]`},
		{"system blocks without the billing one", prompt.APIMessages,
			`{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"a"},{"type":"text","text":"b"}],"messages":[{"role":"user","content":"hi"}]}`,
			`[{"role":"system","content":"ab"},{"role":"user","content":"hi"}]`},
		{"blocks", prompt.APIMessages, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
			`[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`},
		{"a tool's round", prompt.APIMessages, `{"tools":[{"name":"f","description":"d","input_schema":{"properties":{}}}],"tool_choice":{"type":"any"},"messages":[` +
			`{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"t1","name":"f","input":{"a":[1,"é"],"b":null}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}]}`,
			`[{"role":"assistant","reasoning":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\": [1, \"\\u00e9\"], \"b\": null}"}}]},` +
				`{"role":"tool","tool_call_id":"t1","content":"x\ny"}]` +
				`tools=[{"type":"function","function":{"name":"f","description":"d","parameters":{"properties":{},"type":"object"}}}]tool_choice="required"`},
		{"a fraction in a call", prompt.APIMessages, `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1.50}}]}]}`, ""},
		{"an unknown block", prompt.APIMessages, `{"messages":[{"role":"user","content":[{"type":"document"}]}]}`, ""},
		{"a response to a text", prompt.APIResponses, `{"input":"hi","instructions":"be kind"}`,
			`[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]`},
		{"a response to messages", prompt.APIResponses, `{"input":[{"role":"user","content":"hi"},{"type":"message","role":"user","content":[{"type":"input_text","text":"yo"}]}]}`,
			`[{"role":"user","content":"hi"},{"role":"user","content":[{"type":"text","text":"yo"}]}]`},
		{"a stored response", prompt.APIResponses, `{"input":"hi","previous_response_id":"r"}`, ""},
		{"a response with tools", prompt.APIResponses, `{"input":"hi","tools":[{"type":"function"}]}`, ""},
		{"a function's output", prompt.APIResponses, `{"input":[{"type":"function_call_output","call_id":"c","output":"x"}]}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := convert.Chat(read(t, tc.api, tc.body))
			if !ok {
				if tc.want != "" {
					t.Fatal("no chat form")
				}
				return
			}
			text := "[" + string(bytes.Join(got.Messages, []byte(","))) + "]"
			for _, f := range got.Fields {
				text += f.Name + "=" + string(f.Value)
			}
			if text != tc.want {
				t.Errorf("got  %s\nwant %s", text, tc.want)
			}
			if got.API != prompt.APIChat || got.Kind != prompt.KindChat || got.Body != nil {
				t.Errorf("form is %v, %v, body %q", got.API, got.Kind, got.Body)
			}
		})
	}
}

func FuzzChat(f *testing.F) {
	f.Add([]byte(`{"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":"x"}]}]}`), true)
	f.Add([]byte(`{"input":[{"role":"user","content":"hi"}],"instructions":"x"}`), false)
	f.Fuzz(func(t *testing.T, body []byte, messages bool) {
		api := prompt.APIResponses
		if messages {
			api = prompt.APIMessages
		}
		got, ok := convert.Chat(read(t, api, string(body)))
		if !ok || !json.Valid(body) {
			return
		}
		for _, m := range got.Messages {
			if !json.Valid(m) {
				t.Fatalf("%s is not JSON", m)
			}
		}
		for _, f := range got.Fields {
			if !json.Valid(f.Value) {
				t.Fatalf("%s=%s is not JSON", f.Name, f.Value)
			}
		}
	})
}
