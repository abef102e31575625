package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// checks runs all of them, the disturbing ones last.
func (r *run) checks(ctx context.Context) {
	if r.tests != "" {
		r.checkFor(ctx, time.Hour, "vLLM's own tests", r.checkOwnTests)
		return
	}
	r.check(ctx, "token ids", r.checkTokens)
	r.check(ctx, "block keys and predicted hits", r.checkBlocks)
	r.check(ctx, "conversation returns", r.checkConversation)
	r.check(ctx, "predicted cached tokens", r.checkPredictions)
	r.check(ctx, "other formats", r.checkFormats)
	r.check(ctx, "stream bytes", r.checkStreams)
	r.check(ctx, "ids in the body", r.checkGivenIDs)
	r.check(ctx, "LoRA adapter", r.checkAdapter)
	r.check(ctx, "adapters at run time", r.checkRuntimeAdapter)
	r.check(ctx, "Cohere's format", r.checkCohere)
	r.check(ctx, "realtime", r.checkRealtime)
	r.check(ctx, "cache salt", r.checkSalt)
	r.check(ctx, "traces", r.checkTraces)
	r.check(ctx, "abort", r.checkAbort)
	r.check(ctx, "reset of the prefix cache", r.checkReset)
	r.check(ctx, "resumed streams", r.checkResume)
	r.check(ctx, "32 clients", r.checkLoad)
	r.check(ctx, "64 chats", r.checkChats)
	r.check(ctx, "kill -9 under load", r.checkKill)
}

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

// checkTokens compares the ids that the router predicts with those that the engine reports.
func (r *run) checkTokens(ctx context.Context) (string, error) {
	cases := tokenCases()
	for name, body := range cases {
		path := "/v1/chat/completions"
		if _, ok := body["prompt"]; ok {
			path = "/v1/completions"
		}
		body["model"], body["max_tokens"], body["return_token_ids"] = "tiny", 1, true
		direct, err := post(ctx, r.fleet[0].url()+path, body)
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
func (r *run) compareRender(ctx context.Context, name, path string, body object, want []uint32) error {
	if !r.hasRender() {
		return nil
	}
	a, err := post(ctx, r.fleet[0].url()+path+"/render", body)
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

// words makes text that repeats beginnings.
func words(dice *rand.Rand, n int) string {
	list := strings.Fields("the router sends each request block tokens prefix queue replica answer turn conversation hash cache model time number word find keep hold more less soon late")
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(list[dice.IntN(len(list))])
	}
	return b.String()
}

// checkBlocks sends many prompts that share beginnings. Each time the router's prediction must be
// the engine's own count of cached tokens, and afterwards every full block of the prompt must be
// found under the key that the router makes from the ids.
func (r *run) checkBlocks(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var stems []string
	hits, blocks := 0, 0
	for i := range r.prompts {
		prompt := words(dice, 10+dice.IntN(120))
		if len(stems) > 0 && dice.IntN(3) > 0 {
			prompt = stems[dice.IntN(len(stems))] + " " + words(dice, dice.IntN(30))
		}
		if len(prompt) < 2500 {
			stems = append(stems, prompt)
		}
		id := fmt.Sprintf("e2e-block-%d", i)
		a, err := post(ctx, r.router.url()+"/v1/completions", object{"model": "tiny", "prompt": prompt, "max_tokens": 1 + dice.IntN(4), "temperature": 0, "return_token_ids": true}, "X-Request-Id", id)
		if err != nil {
			return "", err
		}
		ids := a.ids("choices", 0, "prompt_token_ids")
		predicted, err := strconv.Atoi(a.header.Get("X-Kvpilot-Overlap-Tokens"))
		if err != nil {
			return "", fmt.Errorf("prompt %d: no prediction in the answer's header: %w", i, err)
		}
		want := min(predicted, (len(ids)-1)/blockSize*blockSize)
		if got := a.cached(); got != want {
			return "", fmt.Errorf("prompt %d of %d tokens on %s: the router saw %d cached tokens (so %d by the last-token rule), the engine %d", i, len(ids), a.header.Get("X-Kvpilot-Replica"), predicted, want, got)
		}
		if a.cached() > 0 {
			hits++
		}
		n, err := r.holds(ctx, a.header.Get("X-Kvpilot-Replica"), ids, "", "")
		if err != nil {
			return "", fmt.Errorf("prompt %d: %w", i, err)
		}
		blocks += n
	}
	return fmt.Sprintf("%d prompts, %d with a hit: predicted = actual each time; %d block keys from ids found among those from events", r.prompts, hits, blocks), nil
}

// holds waits until the index says that the replica holds every full block of ids, and counts them.
func (r *run) holds(ctx context.Context, id string, ids []uint32, adapter, salt string) (int, error) {
	want := len(ids) / blockSize * blockSize
	got := uint32(0)
	ids = append(slices.Clone(ids), 0) // the block of a prompt's last token would not count: it is computed again
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		resp, err := r.router.api.Routing().ScoreOverlap(ctx, &kvpilotv1.ScoreOverlapRequest{
			Model: "tiny", Adapter: adapter, CacheSalt: salt,
			Prompt: &kvpilotv1.ScoreOverlapRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}},
		})
		if err != nil {
			return 0, err
		}
		for _, rank := range resp.GetRanks() {
			if rank.GetReplicaId() == id {
				got = rank.GetOverlap().GetGpuTokens()
			}
		}
		if int(got) == want {
			return want / blockSize, nil
		}
	}
	return 0, fmt.Errorf("%s holds %d of %d tokens by the index, 5 s after it computed them", id, got, want)
}

// checkConversation plays a conversation: it must return to its replica, and hit more each turn.
func (r *run) checkConversation(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	messages := []object{{"role": "system", "content": words(dice, 80)}}
	home, last := "", -1
	var counts []string
	for turn := range 6 {
		messages = append(messages, object{"role": "user", "content": words(dice, 30)})
		a, err := post(ctx, r.router.url()+"/v1/chat/completions", object{"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0})
		if err != nil {
			return "", err
		}
		at := a.header.Get("X-Kvpilot-Replica")
		if turn > 0 && at != home {
			return "", fmt.Errorf("turn %d went to %s, the conversation's blocks are on %s", turn, at, home)
		}
		if a.cached() <= last {
			return "", fmt.Errorf("turn %d hit %d tokens, the one before %d", turn, a.cached(), last)
		}
		home, last = at, a.cached()
		counts = append(counts, strconv.Itoa(last))
		answer, _ := a.at("choices", 0, "message", "content").(string)
		messages = append(messages, object{"role": "assistant", "content": answer})
	}
	return "six turns on " + home + ", cached tokens " + strings.Join(counts, ", "), nil
}

// checkSalt: a salt separates equal prompts, in the engine and in the index.
func (r *run) checkSalt(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano()))), 120)
	var cached []int
	for _, salt := range []string{"", "red", "red"} {
		body := object{"model": "tiny", "prompt": prompt, "max_tokens": 1, "return_token_ids": true}
		if salt != "" {
			body["cache_salt"] = salt
		}
		a, err := post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", r.fleet[0].id)
		if err != nil {
			return "", err
		}
		cached = append(cached, a.cached())
		if _, err := r.holds(ctx, r.fleet[0].id, a.ids("choices", 0, "prompt_token_ids"), "", salt); err != nil && r.hasRender() {
			return "", fmt.Errorf("salt %q: %w", salt, err)
		}
	}
	if cached[0] != 0 || cached[1] != 0 || cached[2] == 0 {
		return "", fmt.Errorf("cached tokens without, with and again with a salt: %v", cached)
	}
	detail := fmt.Sprintf("cached tokens without, with and again with the salt: %v", cached)
	if !r.hasRender() {
		detail += "; events of this version do not carry salts, so the index cannot distinguish them"
	}
	return detail, nil
}

// checkAdapter: the adapter is a model of its own, with blocks of its own.
func (r *run) checkAdapter(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(5, uint64(time.Now().UnixNano()))), 120)
	texts := map[string]string{}
	for _, model := range []string{"tiny", "adapter", "adapter"} {
		a, err := post(ctx, r.router.url()+"/v1/completions", object{"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "return_token_ids": true}, "X-Kvpilot-Pin", r.fleet[0].id)
		if err != nil {
			return "", err
		}
		text, _ := a.at("choices", 0, "text").(string)
		if before, again := texts[model]; again {
			if a.cached() == 0 || text != before {
				return "", fmt.Errorf("the adapter's second answer: %d cached tokens, %q, first %q", a.cached(), text, before)
			}
		} else if a.cached() != 0 {
			return "", fmt.Errorf("the first prompt for %s hit %d tokens of another model", model, a.cached())
		}
		texts[model] = text
		if model == "adapter" && r.atLeast(14) {
			if _, err := r.holds(ctx, r.fleet[0].id, a.ids("choices", 0, "prompt_token_ids"), "adapter", ""); err != nil {
				return "", err
			}
		}
	}
	if texts["tiny"] == texts["adapter"] {
		return "", fmt.Errorf("model and adapter answer alike: %q", texts["tiny"])
	}
	return "answers and blocks of model and adapter are apart", nil
}

// checkReset: the engine forgets, and so does the index.
func (r *run) checkReset(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(9, uint64(time.Now().UnixNano()))), 120)
	body := object{"model": "tiny", "prompt": prompt, "max_tokens": 1, "return_token_ids": true}
	a, err := post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", r.fleet[0].id)
	if err != nil {
		return "", err
	}
	ids := a.ids("choices", 0, "prompt_token_ids")
	if _, err := r.holds(ctx, r.fleet[0].id, ids, "", ""); err != nil {
		return "", err
	}
	if code, text, err := call(ctx, "POST", r.fleet[0].url()+"/reset_prefix_cache", nil); err != nil || code != 200 {
		return "", fmt.Errorf("reset: %d %s %w", code, text, err)
	}
	// The engine announces the reset with its next step.
	if _, err := post(ctx, r.fleet[0].url()+"/v1/completions", object{"model": "tiny", "prompt": "x", "max_tokens": 1}); err != nil {
		return "", err
	}
	if _, err := r.holds(ctx, r.fleet[0].id, nil, "", ""); err != nil {
		return "", err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := r.router.api.Routing().ScoreOverlap(ctx, &kvpilotv1.ScoreOverlapRequest{Model: "tiny", Prompt: &kvpilotv1.ScoreOverlapRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}}})
		if err != nil {
			return "", err
		}
		left := uint32(0)
		for _, rank := range resp.GetRanks() {
			if rank.GetReplicaId() == r.fleet[0].id {
				left = rank.GetOverlap().GetGpuTokens()
			}
		}
		if left == 0 {
			return "the index forgot the replica's blocks", nil
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("5 s after the reset the index still holds %d tokens", left)
		}
	}
}

// checkAbort: a client that leaves frees the engine and the reservation.
func (r *run) checkAbort(ctx context.Context) (string, error) {
	inner, leave := context.WithCancel(ctx)
	defer leave()
	raw, err := json.Marshal(object{"model": "tiny", "prompt": "continue", "max_tokens": 3000, "ignore_eos": true, "stream": true})
	if err != nil {
		return "", err
	}
	resp, err := open(inner, "POST", r.router.url()+"/v1/completions", raw)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // abandoned on purpose
	if _, err := resp.Body.Read(make([]byte, 64)); err != nil {
		return "", err
	}
	began := time.Now()
	leave()
	booked, running := time.Duration(0), time.Duration(0)
	for end := began.Add(10 * time.Second); time.Now().Before(end) && (booked == 0 || running == 0); time.Sleep(5 * time.Millisecond) {
		if booked == 0 {
			n, err := r.inFlight(ctx)
			if err != nil {
				return "", err
			}
			if n == 0 {
				booked = time.Since(began)
			}
		}
		if running == 0 && r.engineLoad(ctx) == 0 {
			running = time.Since(began)
		}
	}
	if booked == 0 || running == 0 {
		return "", fmt.Errorf("10 s after the client left: reservation released %v, engine idle %v", booked > 0, running > 0)
	}
	return fmt.Sprintf("reservation released after %d ms, engine idle after %d ms", booked.Milliseconds(), running.Milliseconds()), nil
}

// inFlight counts the router's reservations.
func (r *run) inFlight(ctx context.Context) (int, error) {
	resp, err := r.router.api.Routing().GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, rank := range resp.GetRanks() {
		n += int(rank.GetRequests())
	}
	return n, nil
}

// engineLoad sums what the engines say is running; an engine that does not answer counts as busy.
func (r *run) engineLoad(ctx context.Context) int {
	sum := 0
	for _, e := range r.fleet {
		_, text, err := call(ctx, "GET", e.url()+"/metrics", nil)
		if err != nil {
			return -1
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "vllm:num_requests_running{") || strings.HasPrefix(line, "vllm:num_requests_waiting{") {
				f := strings.Fields(line)
				v, err := strconv.ParseFloat(f[len(f)-1], 64)
				if err == nil {
					sum += int(v)
				}
			}
		}
	}
	return sum
}

// checkGivenIDs: ids in a chat's kv_transfer_params give the same answer.
func (r *run) checkGivenIDs(ctx context.Context) (string, error) {
	if !r.atLeast(28) {
		return "", fmt.Errorf("this version does not take ids on chat: %w", errSkip)
	}
	body := object{"model": "tiny", "messages": []object{{"role": "user", "content": words(rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))), 60)}}, "max_tokens": 12, "temperature": 0, "return_token_ids": true}
	plain, err := post(ctx, r.fleet[0].url()+"/v1/chat/completions", body)
	if err != nil {
		return "", err
	}
	ids := plain.ids("prompt_token_ids")
	given := object{"model": "tiny", "messages": []object{{"role": "user", "content": "x"}}, "max_tokens": 12, "temperature": 0, "return_token_ids": true, "kv_transfer_params": object{"prompt_token_ids": ids}}
	direct, err := post(ctx, r.fleet[0].url()+"/v1/chat/completions", given)
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

// checkTraces: one trace holds the router's spans and the engine's.
func (r *run) checkTraces(ctx context.Context) (string, error) {
	if r.sim {
		return "", fmt.Errorf("the simulator exports no spans: %w", errSkip)
	}
	trace := fmt.Sprintf("%032x", time.Now().UnixNano())
	parent := "00-" + trace + "-00f067aa0ba902b7-01"
	if _, err := post(ctx, r.router.url()+"/v1/completions", object{"model": "tiny", "prompt": "trace me", "max_tokens": 2}, "Traceparent", parent); err != nil {
		return "", err
	}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	list, found := r.spans.wait(wait, trace, "llm_request")
	if !found {
		return "", fmt.Errorf("no span llm_request of the engine in the trace; it has %v", list)
	}
	list, found = r.spans.wait(wait, trace, "kvpilot.proxy")
	if !found {
		return "", fmt.Errorf("no span kvpilot.proxy in the trace; it has %v", list)
	}
	byID := map[string]string{}
	for _, s := range list {
		byID[s.id] = s.name
	}
	for _, s := range list {
		if s.name == "llm_request" {
			if byID[s.parent] == "" {
				return "", fmt.Errorf("the engine's span is no child of the router's: %v", list)
			}
			return fmt.Sprintf("%d spans in one trace; llm_request is a child of %s", len(list), byID[s.parent]), nil
		}
	}
	return "", fmt.Errorf("spans %v", list)
}
