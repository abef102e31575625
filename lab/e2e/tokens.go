package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// tokenCases are requests whose ids must be the same everywhere.
func tokenCases() map[string]object {
	user := func(s string) []object { return []object{{"role": "user", "content": s}} }
	tool := object{"type": "function", "function": object{"name": "get_weather", "description": "the weather", "parameters": object{"type": "object", "properties": object{"city": object{"type": "string"}}}}}
	return map[string]object{
		"chat":       {"messages": []object{{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}}},
		"turns":      {"messages": []object{{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}}},
		"unicode":    {"messages": user("Größe 你好 🚀 naïve\n\n\tтест  two  spaces ")},
		"parts":      {"messages": []object{{"role": "user", "content": []object{{"type": "text", "text": "one"}, {"type": "text", "text": "two"}}}}},
		"tools":      {"messages": user("weather?"), "tools": []object{tool}},
		"tools none": {"messages": user("weather?"), "tools": []object{tool}, "tool_choice": "none"},
		"tool turns": {"messages": []object{{"role": "user", "content": "w"}, {"role": "assistant", "content": "", "tool_calls": []object{{"id": "call_1", "type": "function", "function": object{"name": "get_weather", "arguments": `{"city": "Bern"}`}}}}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}}},
		"thinking":   {"messages": user("think"), "chat_template_kwargs": object{"enable_thinking": false}},
		"no prompt":  {"messages": user("no prompt"), "add_generation_prompt": false},
		"continue":   {"messages": []object{{"role": "user", "content": "x"}, {"role": "assistant", "content": "so then"}}, "add_generation_prompt": false, "continue_final_message": true},
		"specials":   {"messages": user("specials"), "add_special_tokens": true},
		"completion": {"prompt": "Once upon a time, Größe 🚀"},
		"no bos":     {"prompt": "Once upon a time", "add_special_tokens": false},
	}
}

// checkTokens compares the ids that the router predicts with the engine's ids.
func (r *answers) checkTokens(ctx context.Context) (string, error) {
	cases := tokenCases()
	for name, body := range cases {
		path := "/v1/chat/completions"
		if _, ok := body["prompt"]; ok {
			path = "/v1/completions"
		}
		body["model"], body["max_tokens"], body["return_token_ids"] = "tiny", 1, true
		direct, err := post(ctx, r.engines[0].url()+path, body)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		want := direct.ids("prompt_token_ids")
		if path == "/v1/completions" {
			want = direct.ids("choices", 0, "prompt_token_ids")
		}
		if len(want) == 0 {
			return "", fmt.Errorf("%s: the engine reports no prompt ids", name)
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		got, err := r.router.api.TokenizeBody(ctx, raw)
		if err != nil {
			return "", fmt.Errorf("%s: the router's tokenizer: %w", name, err)
		}
		if !slices.Equal(got, want) {
			return "", fmt.Errorf("%s: the router predicts %v, the engine used %v", name, got, want)
		}
		if err := r.compareRender(ctx, name, path, body, want); err != nil {
			return "", err
		}
	}
	text, err := r.router.api.Detokenize(ctx, "tiny", []uint32{50, 51})
	if err != nil || text == "" {
		return "", fmt.Errorf("detokenize: %q, %w", text, err)
	}
	return fmt.Sprintf("%d kinds of requests: the router's ids are the engine's", len(cases)), nil
}

// compareRender checks /render where the version has it.
func (r *answers) compareRender(ctx context.Context, name, path string, body object, want []uint32) error {
	if !r.hasRender() {
		return nil
	}
	a, err := post(ctx, r.engines[0].url()+path+"/render", body)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	got := a.ids("token_ids")
	if path == "/v1/completions" {
		got = a.ids(0, "token_ids")
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: /render gives %v, the engine used %v", name, got, want)
	}
	return nil
}

// checkGivenIDs: ids in a chat's kv_transfer_params give the same answer.
func (r *answers) checkGivenIDs(ctx context.Context) (string, error) {
	if !r.atLeast(28) {
		return "", fmt.Errorf("this version does not take ids on chat: %w", errSkip)
	}
	body := object{"model": "tiny", "messages": []object{{"role": "user", "content": words(rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))), 60)}}, "max_tokens": 12, "temperature": 0, "return_token_ids": true}
	plain, err := post(ctx, r.engines[0].url()+"/v1/chat/completions", body)
	if err != nil {
		return "", err
	}
	ids := plain.ids("prompt_token_ids")
	given := object{"model": "tiny", "messages": []object{{"role": "user", "content": "x"}}, "max_tokens": 12, "temperature": 0, "return_token_ids": true, "kv_transfer_params": object{"prompt_token_ids": ids}}
	direct, err := post(ctx, r.engines[0].url()+"/v1/chat/completions", given)
	if err != nil {
		return "", err
	}
	routed, err := post(ctx, r.router.url()+"/v1/chat/completions", body)
	if err != nil {
		return "", err
	}
	want := plain.at("choices", 0, "message", "content")
	for name, a := range map[string]answer{"ids sent to the engine": direct, "through the router, which hands ids over": routed} {
		if got := a.at("choices", 0, "message", "content"); got != want || !slices.Equal(a.ids("prompt_token_ids"), ids) {
			return "", fmt.Errorf("%s: answered %q, want %q", name, got, want)
		}
	}
	return fmt.Sprintf("%d ids in place of messages: the same answer, direct and routed", len(ids)), nil
}
