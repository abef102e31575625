package enginesim_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

const hello = `{"model":"sim","messages":[{"role":"user","content":"Hello there, how are you?"}],"max_tokens":8`

func TestChatStreamHasVLLMsBytes(t *testing.T) {
	r := start(t, fast())
	code, body := r.post(t, "/v1/chat/completions", hello+`,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`, "X-Request-Id", "abc")
	if code != 200 {
		t.Fatalf("status %d: %s", code, body)
	}
	list := events(t, body)
	if got := list[len(list)-1]; got != "[DONE]" {
		t.Errorf("last event is %s, want [DONE]", got)
	}
	created := int64(at(decode(t, []byte(list[0])), "created").(float64))
	want := fmt.Sprintf(`{"id":"chatcmpl-abc","object":"chat.completion.chunk","created":%d,"model":"sim","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[`, created)
	if !strings.HasPrefix(list[0], want) || !strings.HasSuffix(list[0], `],"prompt_text":null}`) {
		t.Errorf("first chunk\n got %s\nwant %s...", list[0], want)
	}
	text, ids := "", 0
	for _, e := range list[1 : len(list)-2] {
		v := decode(t, []byte(e))
		s, _ := at(v, "choices", 0, "delta", "content").(string)
		text += s
		tokens, _ := at(v, "choices", 0, "token_ids").([]any)
		ids += len(tokens)
	}
	if ids != 8 || text == "" {
		t.Errorf("got %d ids and text %q, want 8 ids", ids, text)
	}
	last := decode(t, []byte(list[len(list)-3]))
	if got := at(last, "choices", 0, "finish_reason"); got != "length" {
		t.Errorf("finish_reason %v, want length", got)
	}
	usage := list[len(list)-2]
	if want := `"choices":[],"usage":{"prompt_tokens":`; !strings.Contains(usage, want) {
		t.Errorf("usage chunk %s lacks %s", usage, want)
	}
	if want := `"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":16}`; !strings.Contains(usage, want) {
		t.Errorf("usage chunk %s lacks %s", usage, want)
	}
}

func TestOldVersionLeavesDetailsOutOnAMiss(t *testing.T) {
	cfg := fast()
	cfg.Version = "0.12.0"
	r := start(t, cfg)
	_, body := r.post(t, "/v1/chat/completions", hello+`}`)
	if !strings.Contains(string(body), `"prompt_tokens_details":null`) {
		t.Errorf("a miss of 0.12 must have null details: %s", body)
	}
	_, body = r.post(t, "/v1/chat/completions", hello+`}`)
	if got := cachedOf(t, body); got != 16 {
		t.Errorf("cached %d, want 16: %s", got, body)
	}
	if code, _ := r.post(t, "/v1/chat/completions/render", hello+`}`); code != 404 {
		t.Errorf("render of 0.12 answered %d, want 404", code)
	}
}

func TestCachedTokensFollowTheLastTokenRule(t *testing.T) {
	r := start(t, fast())
	prompt := func(n int) string {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint(1000 + i)
		}
		return `{"model":"sim","max_tokens":1,"prompt":[` + strings.Join(ids, ",") + `]}`
	}
	for _, c := range []struct{ tokens, want int }{
		{64, 0}, {64, 48}, {65, 64}, {66, 64}, {80, 64}, {80, 64}, {81, 80},
	} {
		_, body := r.post(t, "/v1/completions", prompt(c.tokens))
		if got := cachedOf(t, body); got != c.want {
			t.Errorf("prompt of %d: cached %d, want %d", c.tokens, got, c.want)
		}
	}
}

// Of several samples vLLM reports the hits of the last one, which finds what the first one has stored.
func TestCachedTokensOfSeveralSamples(t *testing.T) {
	r := start(t, fast())
	for turn, want := range []int{64, 64} {
		_, body := r.post(t, "/v1/completions", `{"model":"sim","max_tokens":1,"n":2,"prompt":[`+strings.Repeat("7,", 69)+`7]}`)
		if got := cachedOf(t, body); got != want {
			t.Errorf("request %d: cached %d, want %d: %s", turn, got, want, body)
		}
	}
}

func TestTheNextTurnHitsTheAnswersBlocks(t *testing.T) {
	r := start(t, fast())
	messages := `{"role":"user","content":"Tell me a long story about the sea."}`
	for turn := range 4 {
		_, body := r.post(t, "/v1/chat/completions", `{"model":"sim","return_token_ids":true,"min_tokens":40,"messages":[`+messages+`]}`)
		v := decode(t, body)
		prompt := int(at(v, "usage", "prompt_tokens").(float64))
		made := int(at(v, "usage", "completion_tokens").(float64))
		if turn > 0 {
			if got, least := cachedOf(t, body), prompt-60; got < least {
				t.Errorf("turn %d: cached %d of %d, want at least %d", turn, got, prompt, least)
			}
		}
		if made < 40 {
			t.Errorf("turn %d made %d tokens, want at least 40", turn, made)
		}
		text := at(v, "choices", 0, "message", "content").(string)
		messages += fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"Go on."}`, text)
	}
}

func TestTokenizeAgreesWithTheEngine(t *testing.T) {
	r := start(t, fast())
	bodies := map[string]string{
		"plain":    hello + `,"return_token_ids":true}`,
		"unicode":  `{"model":"sim","max_tokens":1,"return_token_ids":true,"messages":[{"role":"system","content":"Größe 你好 🚀"},{"role":"user","content":"a\n\n b  c\t<|im_end|>"}]}`,
		"tools":    `{"model":"sim","max_tokens":1,"return_token_ids":true,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":[{"role":"user","content":"x"}]}`,
		"thinking": `{"model":"sim","max_tokens":1,"return_token_ids":true,"chat_template_kwargs":{"enable_thinking":false},"messages":[{"role":"user","content":"x"}]}`,
		"continue": `{"model":"sim","max_tokens":1,"return_token_ids":true,"add_generation_prompt":false,"continue_final_message":true,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"so"}]}`,
	}
	seen := map[string]string{}
	for name, body := range bodies {
		_, engine := r.post(t, "/v1/chat/completions", body)
		_, tokens := r.post(t, "/tokenize", body)
		_, render := r.post(t, "/v1/chat/completions/render", body)
		want := fmt.Sprint(decode(t, engine)["prompt_token_ids"])
		if got := fmt.Sprint(decode(t, tokens)["tokens"]); got != want {
			t.Errorf("%s: /tokenize gives %s, the engine used %s", name, got, want)
		}
		if got := fmt.Sprint(decode(t, render)["token_ids"]); got != want {
			t.Errorf("%s: /render gives %s, the engine used %s", name, got, want)
		}
		if other, ok := seen[want]; ok {
			t.Errorf("%s and %s have the same ids", name, other)
		}
		seen[want] = name
	}
}

func TestIDsGivenForAChatReplaceTheTemplate(t *testing.T) {
	r := start(t, fast())
	_, plain := r.post(t, "/v1/chat/completions", hello+`,"return_token_ids":true}`)
	v := decode(t, plain)
	ids := strings.ReplaceAll(fmt.Sprint(v["prompt_token_ids"]), " ", ",")
	_, given := r.post(t, "/v1/chat/completions", `{"model":"sim","messages":[{"role":"user","content":"x"}],"max_tokens":8,"return_token_ids":true,"kv_transfer_params":{"prompt_token_ids":`+ids+`}}`)
	g := decode(t, given)
	if got, want := fmt.Sprint(g["prompt_token_ids"]), fmt.Sprint(v["prompt_token_ids"]); got != want {
		t.Errorf("prompt ids %s, want %s", got, want)
	}
	if got, want := at(g, "choices", 0, "message", "content"), at(v, "choices", 0, "message", "content"); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
}

func TestErrorsAreVLLMs(t *testing.T) {
	cfg := fast()
	r := start(t, cfg)
	for _, c := range []struct {
		name, path, body string
		code             int
		want             string
	}{
		{"unknown model", "/v1/chat/completions", `{"model":"none","messages":[{"role":"user","content":"a"}]}`, 404,
			"{\"error\":{\"message\":\"The model `none` does not exist. Valid aliases: sim.\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}"},
		{"wrong type", "/v1/chat/completions", `{"model":"sim","messages":"x"}`, 400, `'loc': 'body.messages', 'msg': 'Input should be a valid list'`},
		{"no messages", "/v1/chat/completions", `{"model":"sim"}`, 400, `'loc': 'body.messages', 'msg': 'Field required'`},
		{"broken", "/v1/chat/completions", `{bad`, 400, `json_invalid`},
		{"too long", "/v1/completions", `{"model":"sim","max_tokens":4,"prompt":"` + strings.Repeat("word ", 5000) + `"}`, 400, `This model's maximum context length is 4096 tokens. However, you requested`},
		{"stream options", "/v1/chat/completions", hello + `,"stream_options":{"include_usage":true}}`, 400, "Stream options can only be defined when `stream=True`"},
		{"both prompts", "/tokenize", `{"model":"sim","messages":[{"role":"user","content":"a"}],"continue_final_message":true}`, 400, `are not compatible`},
		{"template", "/v1/chat/completions", hello + `,"chat_template":"x"}`, 400, `--trust-request-chat-template`},
		{"nowhere", "/nope", `{}`, 404, `{"detail":"Not Found"}`},
		{"method", "/v1/models", `{}`, 405, `{"detail":"Method Not Allowed"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, body := r.post(t, c.path, c.body)
			if code != c.code || !strings.Contains(string(body), c.want) {
				t.Errorf("got %d %s\nwant %d %s", code, body, c.code, c.want)
			}
		})
	}
	if code, body := r.post(t, "/v1/chat/completions", "\uFEFF"+hello+`}`); code != 200 {
		t.Errorf("a byte order mark: %d %s", code, body)
	}
	if code, body := r.post(t, "/v1/chat/completions", hello+`}`, "X-Data-Parallel-Rank", "3"); code != 400 || !strings.Contains(string(body), "data_parallel_rank 3 is out of range [0, 1)") {
		t.Errorf("a rank out of range: %d %s", code, body)
	}
	if code, body := r.post(t, "/v1/chat/completions", hello+`}`, "Content-Type", "text/plain"); code != 400 || !strings.Contains(string(body), "Unsupported Media Type") {
		t.Errorf("a wrong content type: %d %s", code, body)
	}
}

func TestToolCallsOnRequest(t *testing.T) {
	r := start(t, fast())
	body := `{"model":"sim","messages":[{"role":"user","content":"please use get_weather now"}],"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}]`
	_, whole := r.post(t, "/v1/chat/completions", body+`}`)
	v := decode(t, whole)
	if got := at(v, "choices", 0, "finish_reason"); got != "tool_calls" {
		t.Fatalf("finish_reason %v, want tool_calls: %s", got, whole)
	}
	args, _ := at(v, "choices", 0, "message", "tool_calls", 0, "function", "arguments").(string)
	if d := decode(t, []byte(args)); d["city"] == nil || d["days"] != 7.0 {
		t.Errorf("arguments %s", args)
	}
	_, stream := r.post(t, "/v1/chat/completions", body+`,"stream":true}`)
	got := ""
	for _, e := range events(t, stream) {
		if e == "[DONE]" {
			continue
		}
		s, _ := at(decode(t, []byte(e)), "choices", 0, "delta", "tool_calls", 0, "function", "arguments").(string)
		got += s
	}
	if got != args {
		t.Errorf("streamed arguments %q, want %q", got, args)
	}
	if !strings.Contains(string(stream), `"finish_reason":"tool_calls"`) {
		t.Errorf("the stream does not end with tool_calls: %s", stream)
	}
}

func TestStopStringsAndSeveralAnswers(t *testing.T) {
	r := start(t, fast())
	_, body := r.post(t, "/v1/completions", `{"model":"sim","prompt":"one","max_tokens":60,"ignore_eos":true,"n":2}`)
	v := decode(t, body)
	text := at(v, "choices", 0, "text").(string)
	if other := at(v, "choices", 1, "text"); other == text {
		t.Errorf("two answers are equal: %q", text)
	}
	stop := text[20:24]
	for _, stream := range []string{"false", "true"} {
		_, body = r.post(t, "/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":"one","max_tokens":60,"ignore_eos":true,"stop":[%q],"stream":%s}`, stop, stream))
		got := ""
		if stream == "true" {
			for _, e := range events(t, body) {
				if e != "[DONE]" {
					got += at(decode(t, []byte(e)), "choices", 0, "text").(string)
				}
			}
		} else {
			got = at(decode(t, body), "choices", 0, "text").(string)
		}
		if want := text[:strings.Index(text, stop)]; got != want {
			t.Errorf("stream %s: text %q, want %q", stream, got, want)
		}
		if !strings.Contains(string(body), fmt.Sprintf(`"stop_reason":%q`, stop)) {
			t.Errorf("stream %s does not name the stop string: %s", stream, body)
		}
	}
}

// A stop string counts as in vLLM: the first one to end, in the text of the tokens after min_tokens, and usage counts its tokens alone.
func TestWhichStopStringEndsAnAnswer(t *testing.T) {
	r := start(t, fast())
	const body = `{"model":"sim","prompt":"one","max_tokens":60,"ignore_eos":true,"return_token_ids":true`
	ask := func(more string) (text, finish, stop string, tokens int) {
		t.Helper()
		code, answer := r.post(t, "/v1/completions", body+more+"}")
		if code != 200 {
			t.Fatalf("status %d: %s", code, answer)
		}
		v := decode(t, answer)
		stop, _ = at(v, "choices", 0, "stop_reason").(string)
		tokens = len(numbers(at(v, "choices", 0, "token_ids")))
		if n := at(v, "usage", "completion_tokens").(float64); int(n) != tokens {
			t.Errorf("usage counts %v tokens of %d", n, tokens)
		}
		return at(v, "choices", 0, "text").(string), at(v, "choices", 0, "finish_reason").(string), stop, tokens
	}
	whole, _, _, _ := ask("")
	late, early := whole[38:48], whole[42:46] // the second one ends within the first
	if strings.Index(whole, early) != 42 || strings.Index(whole, late) != 38 {
		t.Fatalf("choose other places in %q", whole)
	}
	for name, c := range map[string]struct{ more, text, stop string }{
		"the first to end":         {fmt.Sprintf(`,"stop":[%q,%q]`, late, early), whole[:42], early},
		"it is part of the answer": {fmt.Sprintf(`,"include_stop_str_in_output":true,"stop":%q`, late), whole[:48], late},
		"of two that end together": {fmt.Sprintf(`,"stop":[%q,%q]`, whole[40:46], early), whole[:40], whole[40:46]},
		"the other way round":      {fmt.Sprintf(`,"stop":[%q,%q]`, early, whole[40:46]), whole[:42], early},
	} {
		text, finish, stop, tokens := ask(c.more)
		if text != c.text || stop != c.stop || finish != "stop" || tokens >= 60 {
			t.Errorf("%s: %q by %q (%s) with %d tokens, want %q by %q", name, text, stop, finish, tokens, c.text, c.stop)
		}
	}
	if text, finish, _, tokens := ask(fmt.Sprintf(`,"min_tokens":59,"stop":%q`, late)); text != whole || finish != "length" || tokens != 60 {
		t.Errorf("a string in the first min_tokens ends the answer: %q (%s)", text, finish)
	}
}

func TestEveryOtherRouteAnswers(t *testing.T) {
	r := start(t, fast())
	for _, c := range []struct{ path, body, want string }{
		{"/v1/embeddings", `{"model":"sim","input":["a","b"]}`, `"embedding":[`},
		{"/pooling", `{"model":"sim","input":"a"}`, `"data":[`},
		{"/classify", `{"model":"sim","input":"a"}`, `"probs":[`},
		{"/score", `{"model":"sim","text_1":"a","text_2":["b","c"]}`, `"index":1`},
		{"/v1/rerank", `{"model":"sim","query":"a","documents":["b","c"],"top_n":1}`, `"relevance_score":`},
		{"/v1/responses", `{"model":"sim","input":"hi","max_output_tokens":3}`, `"status":"incomplete"`},
		{"/v1/responses", `{"model":"sim","input":"hi","max_output_tokens":3,"stream":true}`, "event: response.completed\n"},
		{"/v1/messages", `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`, `"stop_reason":"max_tokens"`},
		{"/v1/messages", `{"model":"sim","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, "event: message_stop\n"},
		{"/v1/messages/count_tokens", `{"model":"sim","messages":[{"role":"user","content":"hi"}]}`, `{"context_management":{"original_input_tokens":`},
		{"/detokenize", `{"model":"sim","tokens":[72,105]}`, `{"prompt":"Hi"}`},
		{"/v1/completions/render", `{"model":"sim","prompt":["a","b"]}`, `"token_ids":[`},
		{"/reset_prefix_cache", `{}`, `{"success":true}`},
		{"/v1/completions", `{"model":"sim","prompt":"a b c","max_tokens":2,"echo":true,"logprobs":2}`, `"token_logprobs":[null,`},
	} {
		code, body := r.post(t, c.path, c.body)
		if code != http.StatusOK || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %d %s\nwant %s", c.path, code, body, c.want)
		}
	}
	for path, want := range map[string]string{
		"/health": "", "/ping": "", "/version": `{"version":"0.32.0"}`, "/load": `{"server_load":0}`,
		"/v1/models": `"max_model_len":4096`, "/metrics": `vllm:cache_config_info{block_size="16"`,
	} {
		code, body := r.get(t, path)
		if code != 200 || !strings.Contains(string(body), want) {
			t.Errorf("GET %s: %d %s, want %s", path, code, body, want)
		}
	}
}

func TestMetricsTellWhenTheProcessBegan(t *testing.T) {
	before := time.Now().Add(-time.Second)
	r := start(t, fast())
	_, body := r.get(t, "/metrics")
	_, rest, found := strings.Cut(string(body), "\nprocess_start_time_seconds ")
	line, _, _ := strings.Cut(rest, "\n")
	seconds, err := strconv.ParseFloat(line, 64)
	if began := time.UnixMilli(int64(seconds * 1000)); !found || err != nil || began.Before(before) || began.After(time.Now().Add(10*time.Millisecond)) { // it is rounded
		t.Errorf("began at %v (%q, %v), started after %v", began, line, err, before)
	}
}

func TestResponsesAreKept(t *testing.T) {
	cfg := fast()
	cfg.Core.Timing.Speed, cfg.MeanAnswer = 1, 3000 // the response to be cancelled must be in the making
	r := start(t, cfg)
	_, body := r.post(t, "/v1/responses", `{"model":"sim","input":"hi","max_output_tokens":3}`)
	id := decode(t, body)["id"].(string)
	if code, again := r.get(t, "/v1/responses/"+id); code != 200 || string(again) != string(body) {
		t.Errorf("GET gave %d %s, want %s", code, again, body)
	}
	if code, _ := r.post(t, "/v1/responses", `{"model":"sim","input":"more","max_output_tokens":3,"previous_response_id":"`+id+`"}`); code != 200 {
		t.Errorf("a second turn answered %d", code)
	}
	if code, _ := r.get(t, "/v1/responses/resp_x"); code != 404 {
		t.Errorf("an unknown response answered %d, want 404", code)
	}
	_, body = r.post(t, "/v1/responses", `{"model":"sim","input":"hi","background":true,"max_output_tokens":3000}`)
	id = decode(t, body)["id"].(string)
	if _, body = r.post(t, "/v1/responses/"+id+"/cancel", ``); !strings.Contains(string(body), `"status":"cancelled"`) {
		t.Errorf("cancel answered %s", body)
	}
	eventually(t, "the engine to be idle", func() bool { return r.Stats()[0].Running == 0 })
}

func TestDetokenizeGivesTheTextBack(t *testing.T) {
	for _, s := range []string{"", "Hello, world", "  two  spaces ", "naïve café 你好 🚀", "a\n\n\tb", "<|im_start|>x<|im_end", "\xff\xfe"} {
		if got := string(vocab.Decode(nil, vocab.Encode(nil, s), false)); got != s {
			t.Errorf("got %q, want %q", got, s)
		}
	}
}

// TestRendersOfOtherFormats: from 0.32 on, /v1/messages/render and /v1/responses/render give the prompt that
// generating uses, and /kv_event_sources tells where events are.
func TestRendersOfOtherFormats(t *testing.T) {
	for version, there := range map[string]bool{"0.31.0": false, "0.33.0": true} {
		cfg := fast()
		cfg.Version = version
		r := start(t, cfg)
		for path, body := range map[string]string{
			"/v1/messages/render":  `{"model":"sim","max_tokens":4,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`,
			"/v1/responses/render": `{"model":"sim","instructions":"be brief","input":"hello"}`,
		} {
			code, text := r.post(t, path, body)
			if (code == 200) != there || there && !strings.Contains(string(text), `"token_ids":[`) {
				t.Errorf("%s %s: %d %s", version, path, code, text)
			}
		}
		code, text := r.post(t, "/v1/responses/render", `{"model":"sim","input":"hello","previous_response_id":"resp_1"}`)
		if there && (code != 400 || !strings.Contains(string(text), "stateless render")) {
			t.Errorf("%s: a stored response: %d %s", version, code, text)
		}
		code, text = r.get(t, "/kv_event_sources")
		if (code == 200) != there || there && at(decode(t, text), "0", "endpoint") == nil {
			t.Errorf("%s: event sources: %d %s", version, code, text)
		}
	}
}
