package openai_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func readOf(t *testing.T, route openai.Route, body string) *openai.Request {
	t.Helper()
	r, err := openai.Read(openai.Params{Route: route, Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyOnePromptWithOneAnswerIsSplit(t *testing.T) {
	for _, tt := range []struct {
		route openai.Route
		body  string
		want  bool
	}{
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, true},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"tools":[{}],"tool_choice":"auto","logprobs":true}`, true},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"tool_choice":"required"}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"function"}}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"n":2}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"n":1,"echo":false,"prompt_logprobs":null}`, true},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"prompt_logprobs":0}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":1}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}],"kv_transfer_params":{"x":1}}`, false},
		{openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, false},
		{openai.RouteCompletions, `{"model":"m","prompt":"a"}`, true},
		{openai.RouteCompletions, `{"model":"m","prompt":[1,2,3]}`, true},
		{openai.RouteCompletions, `{"model":"m","prompt":["a","b"]}`, false},
		{openai.RouteCompletions, `{"model":"m","prompt":[[1],[2]]}`, false},
		{openai.RouteCompletions, `{"model":"m","prompt":"a","echo":true}`, false},
		{openai.RouteCompletions, `{"model":"m","prompt":"a","best_of":3}`, false},
		{openai.RouteCompletions, `{"model":"m","prompt":"a","best_of":1}`, true},
		{openai.RouteCompletions, `{"model":"m","prompt":"a","use_beam_search":true}`, false},
		{openai.RouteResponses, `{"model":"m","input":"a"}`, false},
		{openai.RouteEmbeddings, `{"model":"m","input":"a"}`, false},
	} {
		if got := openai.Splittable(readOf(t, tt.route, tt.body)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.body, got, tt.want)
		}
	}
}

// object compares bodies by what they mean.
func object(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return m
}

func TestLegsOfARequest(t *testing.T) {
	const params = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e"}`
	for _, tt := range []struct {
		name            string
		route           openai.Route
		body            string
		ids             []uint32
		prefill, decode string
	}{
		{
			name: "chat", route: openai.RouteChat,
			body: `{"model":"alias","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":9,` +
				`"stop":["\n"],"stop_token_ids":[7],"min_tokens":3,"temperature":0,"cache_salt":"s","request_id":"mine"}`,
			prefill: `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":false,"max_completion_tokens":1,"max_tokens":1,"ignore_eos":true,` +
				`"temperature":0,"cache_salt":"s","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`,
			decode: `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":9,` +
				`"stop":["\n"],"stop_token_ids":[7],"min_tokens":3,"temperature":0,"cache_salt":"s","kv_transfer_params":` + params + `}`,
		},
		{
			name: "chat with ids", route: openai.RouteChat, ids: []uint32{5, 6}, body: `{"messages":[{"role":"user","content":"a"}],"kv_transfer_params":null}`,
			prefill: `{"messages":[{"role":"user","content":"a"}],"stream":false,"max_tokens":1,"ignore_eos":true,` +
				`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"prompt_token_ids":[5,6]}}`,
			decode: `{"messages":[{"role":"user","content":"a"}],"kv_transfer_params":` + strings.TrimSuffix(params, "}") + `,"prompt_token_ids":[5,6]}}`,
		},
		{
			name: "completion with ids", route: openai.RouteCompletions, ids: []uint32{5, 6}, body: `{"model":"m","prompt":"text","max_tokens":20,"stream":false}`,
			prefill: `{"model":"m","prompt":[5,6],"stream":false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`,
			decode:  `{"model":"m","prompt":[5,6],"max_tokens":20,"stream":false,"kv_transfer_params":` + params + `}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := openai.Legs{Request: readOf(t, tt.route, tt.body), Model: "m", IDs: tt.ids}
			if got := l.Prefill(); !reflect.DeepEqual(object(t, got), object(t, []byte(tt.prefill))) {
				t.Errorf("prefill %s\nwant    %s", got, tt.prefill)
			}
			got := l.Decode([]byte(params))
			if !reflect.DeepEqual(object(t, got), object(t, []byte(tt.decode))) {
				t.Errorf("decode %s\nwant   %s", got, tt.decode)
			}
			if tt.ids == nil && !strings.Contains(string(got), params) {
				t.Errorf("the parameters are not the engine's bytes: %s", got)
			}
		})
	}
}

func TestPrefilledIsRead(t *testing.T) {
	const params = `{"do_remote_prefill":true,"remote_block_ids":[[1]]}`
	for _, tt := range []struct {
		name, body string
		want       openai.Prefilled
	}{
		{"whole", `{"id":"x","usage":{"prompt_tokens":301,"prompt_tokens_details":{"cached_tokens":64}},"kv_transfer_params":` + params + `}`, openai.Prefilled{Params: []byte(params), PromptTokens: 301, CachedTokens: 64}},
		{"no usage", `{"kv_transfer_params":` + params + `}`, openai.Prefilled{Params: []byte(params), PromptTokens: -1, CachedTokens: -1}},
		{"no details", `{"usage":{"prompt_tokens":3,"prompt_tokens_details":null},"kv_transfer_params":null}`, openai.Prefilled{PromptTokens: 3, CachedTokens: -1}},
		{"for the other leg", `{"kv_transfer_params":{"do_remote_prefill":false,"do_remote_decode":true}}`, openai.Prefilled{PromptTokens: -1, CachedTokens: -1}},
		{"no object", `{"kv_transfer_params":[1,2]}`, openai.Prefilled{PromptTokens: -1, CachedTokens: -1}},
		{"cut off", `{"usage":{"prompt_tokens":3},"kv_transfer_params":{"do_remote_prefill":true,"remote_bl`, openai.Prefilled{PromptTokens: 3, CachedTokens: -1}},
		{"no JSON", `<html>`, openai.Prefilled{PromptTokens: -1, CachedTokens: -1}},
		{"empty", ``, openai.Prefilled{PromptTokens: -1, CachedTokens: -1}},
	} {
		if got := openai.ReadPrefilled([]byte(tt.body)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Whatever an engine answers, what is spliced into the other leg's body leaves that a JSON object.
func FuzzPrefilled(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":3},"kv_transfer_params":{"do_remote_prefill":true,"a":[1]}}`))
	f.Add([]byte(`{"kv_transfer_params":{"do_remote_prefill":true,}}`))
	f.Add([]byte(`{"kv_transfer_params":{"do_remote_prefill":true,"a":"\u00"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p := openai.ReadPrefilled(body)
		if p.Params == nil {
			return
		}
		r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"messages":[{"role":"user","content":"a"}]}`)})
		if err != nil {
			t.Fatal(err)
		}
		l := openai.Legs{Request: r, Model: "m", IDs: []uint32{1, 2}}
		if got := l.Decode(p.Params); !json.Valid(got) {
			t.Errorf("%q", got)
		}
	})
}
