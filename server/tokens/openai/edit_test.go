package openai_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestEdits(t *testing.T) {
	edit := func(name, value string) openai.Edit {
		if value == "" {
			return openai.Edit{Name: name}
		}
		return openai.Edit{Name: name, Value: []byte(value)}
	}
	cases := []struct {
		name, body string
		edits      []openai.Edit
		want       string
	}{
		{"replace", `{ "model" : "a" , "x":1}`, []openai.Edit{openai.ModelEdit("b\"c")}, `{ "model" : "b\"c" , "x":1}`},
		{"add", `{"x":1 }`, []openai.Edit{openai.ModelEdit("b")}, `{"x":1 ,"model":"b"}`},
		{"add to nothing", `{ }`, []openai.Edit{openai.ModelEdit("b")}, `{ "model":"b"}`},
		{"the last of two counts", `{"model":"a","model":"b"}`, []openai.Edit{openai.ModelEdit("c")}, `{"model":"a","model":"c"}`},
		{"remove the first", `{"a":1, "b":2, "c":3}`, []openai.Edit{edit("a", "")}, `{"b":2, "c":3}`},
		{"remove in the middle", `{"a":1, "b":2, "c":3}`, []openai.Edit{edit("b", "")}, `{"a":1, "c":3}`},
		{"remove the last", `{"a":1, "b":2, "c":3 }`, []openai.Edit{edit("c", "")}, `{"a":1, "b":2 }`},
		{"remove all", `{"a":1, "b":2 }`, []openai.Edit{edit("a", ""), edit("b", "")}, `{ }`},
		{"remove all and add", `{"a":1}`, []openai.Edit{edit("a", ""), edit("b", "2")}, `{"b":2}`},
		{"remove twins", `{"a":1,"b":2,"a":3}`, []openai.Edit{edit("a", "")}, `{"b":2}`},
		{"remove, replace and add", `{"stream":true,"stream_options":{},"max_tokens":9}`,
			[]openai.Edit{edit("stream", "false"), edit("stream_options", ""), edit("max_tokens", "1"), edit("k", "{}")},
			`{"stream":false,"max_tokens":1,"k":{}}`},
		{"the last edit counts", `{"a":1}`, []openai.Edit{edit("a", "2"), edit("a", "3")}, `{"a":3}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := read(t, openai.Params{Body: []byte(c.body)})
			if got := string(r.Edit(c.edits...)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestPromptIDsGoWhereTheEngineTakesThem(t *testing.T) {
	ids := []uint32{7, 8}
	cases := []struct{ name, body, want string }{
		{"completion", `{"prompt":"hi","n":1}`, `{"prompt":[7,8],"n":1}`},
		{"chat", `{"messages":[{"content":"x"}]}`, `{"messages":[{"content":"x"}],"kv_transfer_params":{"prompt_token_ids":[7,8]}}`},
		{"chat with null", `{"messages":[{}],"kv_transfer_params":null}`, `{"messages":[{}],"kv_transfer_params":{"prompt_token_ids":[7,8]}}`},
		{"chat with an empty object", `{"messages":[{}],"kv_transfer_params":{}}`, `{"messages":[{}],"kv_transfer_params":{"prompt_token_ids":[7,8]}}`},
		{"chat with an object", `{"messages":[{}],"kv_transfer_params":{"a":12345678901234567890}}`,
			`{"messages":[{}],"kv_transfer_params":{"a":12345678901234567890,"prompt_token_ids":[7,8]}}`},
		{"no place", `{"messages":[{}],"kv_transfer_params":"x"}`, `{"messages":[{}],"kv_transfer_params":"x"}`},
		{"batch", `{"prompt":["a","b"]}`, `{"prompt":["a","b"]}`},
		{"media", `{"messages":[{"content":[{"type":"image_url"}]}]}`, `{"messages":[{"content":[{"type":"image_url"}]}]}`},
		{"nothing", `{}`, `{}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := read(t, openai.Params{Body: []byte(c.body)})
			if got := string(r.WithPromptIDs(ids)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
