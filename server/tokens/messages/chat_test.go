package messages_test

import (
	"encoding/json"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// translated is the chat of a message with these members.
func translated(t *testing.T, members string) (string, bool) {
	t.Helper()
	body := []byte(`{"model":"m","stream":true,` + members + `}`)
	r, err := openai.Read(openai.Params{Route: openai.RouteMessages, Body: body})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	chat, ok := messages.Chat(&r.Prompt, body)
	if ok && !json.Valid(chat) {
		t.Fatalf("%s is no JSON", chat)
	}
	return string(chat), ok
}

const hi = `"max_tokens":5,"messages":[{"role":"user","content":"hi"}]`

func TestChatOfAMessage(t *testing.T) {
	for members, want := range map[string]string{
		hi: `,"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"tool_choice":null,"stop":null}`,
		`"temperature":0.5,"top_p":0.9,"top_k":4,"cache_salt":"s","stop_sequences":["x"],"metadata":{"user_id":"u"},"thinking":{"type":"adaptive"},` + hi: `,"model":"m","temperature":0.5,"top_p":0.9,"top_k":4,"cache_salt":"s","stop":["x"],"max_tokens":5,"messages":[{"role":"user","content":"hi"}],"tool_choice":null}`,
		`"system":"be kind","tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true},` + hi: `,"model":"m","max_tokens":5,"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}],` +
			`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","stop":null,"parallel_tool_calls":false}`,
		`"output_config":{"effort":"low"},"priority":3,"a_field_of_tomorrow":null,` + hi: `,"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low","tool_choice":null,"stop":null}`,
	} {
		if got, ok := translated(t, members); !ok || got != `{"stream":true,"stream_options":{"include_usage":true}`+want {
			t.Errorf("%s: %v\n%s\nwant\n%s", members, ok, got, want)
		}
	}
}

func TestMessagesThatAreNotTranslated(t *testing.T) {
	for _, members := range []string{
		`"messages":[{"role":"user","content":"hi"}]`, `"max_tokens":0,"messages":[{"role":"user","content":"hi"}]`, `"max_tokens":5,"messages":[]`, `"max_tokens":5,"messages":[{"role":"user"}]`,
		`"thinking":{"type":"disabled"},` + hi, `"thinking":{"type":"enabled","budget_tokens":1024},` + hi, `"output_config":{"format":{"type":"json_schema","schema":{}}},` + hi, `"a_field_of_tomorrow":1,` + hi, hi + `,"a_field_of_tomorrow":1`,
		`"kv_transfer_params":{"a":1},` + hi, `"vllm_xargs":{"a":1},` + hi, `"watermarking":true,` + hi, `"mm_payload":"none",` + hi, `"tools":[],` + hi, `"tools":[{"name":"f","input_schema":{},"strict":true}],` + hi,
		`"tools":[{"name":"f","input_schema":{},"defer_loading":true}],` + hi, `"tools":[{"name":"f"}],` + hi, `"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":1},` + hi,
		`"max_tokens":5,"messages":[{"role":"user","content":"hi"},{"role":"system","content":"be kind"}]`, `"max_tokens":5,"messages":[{"role":"user","content":[{"type":"document"}]}]`,
		`"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}]`, `"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":[1]}]}]`,
	} {
		if chat, ok := translated(t, members); ok {
			t.Errorf("%s became %s", members, chat)
		}
	}
}

func TestVersionsThatWereCompared(t *testing.T) {
	for version, want := range map[string]bool{"0.33.0": true, "0.33.1.dev3": true, "0.33": true, "0.32.0": false, "0.34.0": false, "0.330": false, "1.33.0": false, "": false} {
		if messages.Serves(version) != want {
			t.Errorf("Serves(%q) = %v", version, !want)
		}
	}
}

// FuzzChat checks that a chat is JSON, with the model of the message, whatever the message is.
func FuzzChat(f *testing.F) {
	for _, members := range []string{hi, `"system":[{"type":"text","text":"a"}],"tool_choice":{"type":"any"},` + hi, `"stop_sequences":[""],"tools":[{"name":"f","input_schema":{"a":1}}],` + hi} {
		f.Add([]byte(`{"model":"m",` + members + `}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := openai.Read(openai.Params{Route: openai.RouteMessages, Body: body})
		if err != nil {
			return
		}
		chat, ok := messages.Chat(&r.Prompt, body)
		if !ok {
			return
		}
		c, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: chat})
		if err != nil || c.Model != r.Model || !c.Stream || !c.IncludeUsage || c.MaxTokens != r.MaxTokens {
			t.Fatalf("%s became %s: %v", body, chat, err)
		}
	})
}
