package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const (
	predictChats = 30
	predictTurns = 5
	predictShare = 0.97
)

// checkPredictions plays conversations of every kind: the cached tokens that the router predicts for each turn
// must be the engine's count.
func (r *answers) checkPredictions(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	turns, right := 0, 0
	var wrong []string
	for n := range predictChats {
		kind := predictKinds()[n%len(predictKinds())]
		messages := []object{{"role": "system", "content": words(dice, 40+dice.IntN(60))}}
		for turn := range predictTurns {
			messages = append(messages, object{"role": "user", "content": kind.text(dice)})
			body := object{"model": "tiny", "messages": messages, "max_tokens": 4 + dice.IntN(28), "temperature": 0}
			kind.change(body, turn)
			id := fmt.Sprintf("e2e-predict-%d-%d-%d", time.Now().UnixNano(), n, turn)
			a, err := post(ctx, r.router.url()+"/v1/chat/completions", body, "X-Request-Id", id)
			if err != nil {
				return "", fmt.Errorf("%s, turn %d: %w", kind.name, turn, err)
			}
			predicted, err := r.router.predicted(ctx, id)
			if err != nil {
				return "", fmt.Errorf("%s, turn %d: %w", kind.name, turn, err)
			}
			turns++
			if got := a.cached(); got == predicted {
				right++
			} else {
				wrong = append(wrong, fmt.Sprintf("%s turn %d of %d tokens: %d predicted, %d counted", kind.name, turn, a.number("usage", "prompt_tokens"), predicted, got))
			}
			text, _ := a.at("choices", 0, "message", "content").(string)
			messages = append(messages, object{"role": "assistant", "content": text})
			time.Sleep(20 * time.Millisecond) // a reader; the last block's event is under way
		}
	}
	detail := fmt.Sprintf("%d of %d turns in %d chats: predicted = the engine's count", right, turns, predictChats)
	if len(wrong) > 0 {
		detail += "; " + strings.Join(wrong[:min(5, len(wrong))], "; ")
	}
	if float64(right) < predictShare*float64(turns) {
		return "", fmt.Errorf("%s, want %.0f %%", detail, 100*predictShare)
	}
	return detail, nil
}

// predicted asks what the router had expected of a request that has ended.
func (p *routerProcess) predicted(ctx context.Context, id string) (int, error) {
	d, err := p.ended(ctx, id)
	return int(d.GetOutcome().GetPredictedCachedTokens()), err
}

// predictKind is one kind of conversation.
type predictKind struct {
	name   string
	text   func(*rand.Rand) string
	change func(body object, turn int)
}

func predictKinds() []predictKind {
	plain := func(dice *rand.Rand) string { return words(dice, 5+dice.IntN(40)) }
	nothing := func(object, int) {}
	tool := object{"type": "function", "function": object{"name": "get_weather", "description": "the weather", "parameters": object{"type": "object", "properties": object{"city": object{"type": "string"}}}}}
	return []predictKind{
		{"plain", plain, nothing},
		{"unicode", func(dice *rand.Rand) string { return "Größe 你好 🚀 naïve тест " + plain(dice) }, nothing},
		{"tools", plain, func(b object, _ int) { b["tools"] = []object{tool} }},
		{"JSON schema", plain, func(b object, _ int) {
			b["max_tokens"] = 12
			b["response_format"] = object{"type": "json_schema", "json_schema": object{"name": "a", "schema": object{"type": "object", "properties": object{"x": object{"type": "integer"}}, "required": []string{"x"}}}}
		}},
		{"two samples", plain, func(b object, _ int) { b["n"], b["temperature"], b["seed"] = 2, 1, 7 }},
		{"logprobs", plain, func(b object, _ int) { b["logprobs"], b["top_logprobs"] = true, 2 }},
		{"prompt logprobs now and then", plain, func(b object, turn int) {
			if turn%2 == 1 {
				b["prompt_logprobs"] = 1
			}
		}},
		{"stop words", plain, func(b object, _ int) { b["stop"] = []string{"zzz"} }},
		{"long answers", plain, func(b object, _ int) { b["max_tokens"] = 96 }},
		{"long questions", func(dice *rand.Rand) string { return words(dice, 120) }, nothing},
	}
}

// checkFormats sends Anthropic and Responses bodies, with tools too: the router must know the length of the prompt
// before it is sent, and the hits of the second time.
func (r *answers) checkFormats(ctx context.Context) (string, error) {
	if !r.atLeast(32) {
		return "", fmt.Errorf("this version renders chat and completions only: %w", errSkip)
	}
	dice := rand.New(rand.NewPCG(13, uint64(time.Now().UnixNano())))
	schema := object{"type": "object", "properties": object{"city": object{"type": "string"}}}
	cases := 0
	for _, tt := range []struct {
		path  string
		body  func(text string) object
		total func(a answer) (prompt, cached int)
	}{
		{"/v1/messages", func(text string) object {
			return object{"model": "tiny", "max_tokens": 4, "system": "Be brief.", "messages": []object{{"role": "user", "content": text}}, "tools": []object{{"name": "get_weather", "description": "w", "input_schema": schema}}}
		}, func(a answer) (int, int) {
			read := a.number("usage", "cache_read_input_tokens")
			return a.number("usage", "input_tokens") + read + a.number("usage", "cache_creation_input_tokens"), read
		}},
		{"/v1/responses", func(text string) object {
			return object{"model": "tiny", "max_output_tokens": 4, "instructions": "Be brief.", "input": text, "store": false, "tools": []object{{"type": "function", "name": "get_weather", "parameters": schema}}}
		}, func(a answer) (int, int) {
			return a.number("usage", "input_tokens"), a.number("usage", "input_tokens_details", "cached_tokens")
		}},
	} {
		text := words(dice, 150)
		for again := range 2 {
			id := fmt.Sprintf("e2e-format-%d-%d", time.Now().UnixNano(), again)
			a, err := post(ctx, r.router.url()+tt.path, tt.body(text), "X-Request-Id", id)
			if err != nil {
				return "", err
			}
			predicted, err := r.router.predicted(ctx, id)
			if err != nil {
				return "", err
			}
			list, err := r.router.api.Explain(ctx, id)
			if err != nil {
				return "", err
			}
			d := list[len(list)-1]
			prompt, cached := tt.total(a)
			if int(d.GetPromptTokens()) != prompt || predicted != cached || again == 1 && cached == 0 {
				return "", fmt.Errorf("%s, time %d: %d tokens and %d cached predicted, the engine counts %d and %d", tt.path, again+1, d.GetPromptTokens(), predicted, prompt, cached)
			}
			cases++
			time.Sleep(50 * time.Millisecond) // the events are under way
		}
	}
	return fmt.Sprintf("%d requests with tools: prompt tokens and cached tokens predicted = the engine's count", cases), nil
}
