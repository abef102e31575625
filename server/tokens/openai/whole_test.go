package openai_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// wholeChat is an answer in one piece as vLLM 0.33 writes it.
const wholeChat = `{"id":"chatcmpl-a","object":"chat.completion","created":17,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null,"weight_versions":null}],"service_tier":null,"system_fingerprint":"vllm-0.33","usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4,"created_cache_tokens":1,"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`

// collected reads the events of a stream.
func collected(t *testing.T, events ...string) (w *openai.Whole, taken bool) {
	t.Helper()
	var read openai.Chunks
	w, taken = &openai.Whole{}, true
	for _, e := range events {
		var c openai.Chunk
		if !read.Read([]byte(e), &c) {
			t.Fatalf("%s cannot be read", e)
		}
		taken = taken && w.Take(&c)
	}
	return w, taken
}

const chunkHead = `{"id":"chatcmpl-b","object":"chat.completion.chunk","created":18,"model":"m",`

func chunkOf(delta, more string) string {
	return chunkHead + `"choices":[{"index":0,"delta":` + delta + `,"logprobs":null` + more + `}]}`
}

func chunkUsage(details string) string {
	return chunkHead + `"choices":[],"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3` + details + `}}`
}

// The answer of a stream has the engine's bytes around its own values, with strings as Python writes them.
func TestAnAnswerInOnePiece(t *testing.T) {
	form := openai.ReadWholeForm(prompt.APIChat, []byte(wholeChat))
	if form == nil {
		t.Fatal("the form is not read")
	}
	details := `,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":0}`
	w, ok := collected(t, chunkOf(`{"role":"assistant","content":""}`, `,"finish_reason":null`), chunkOf(`{"content":"é\"\\\n\t"}`, `,"finish_reason":null,"token_ids":[1]`),
		chunkOf(`{"content":"\u0008\u000c\u001b\u007f\u4f60/"}`, `,"finish_reason":"stop","stop_reason":"x","token_ids":[2,3]`), chunkUsage(details))
	if !ok {
		t.Fatal("a plain stream is not taken")
	}
	got, ok := form.Append(nil, w, false)
	want := strings.NewReplacer(`chatcmpl-a`, `chatcmpl-b`, `"created":17`, `"created":18`, `"content":"hi"`, `"content":"é\"\\\n\t\b\f\u001b`+"\x7f"+`你/"`, `"length","stop_reason":null`, `"stop","stop_reason":"x"`,
		`"total_tokens":7,"completion_tokens":2`, `"total_tokens":8,"completion_tokens":3`, `"cached_tokens":4,"created_cache_tokens":1`, `"cached_tokens":2,"created_cache_tokens":0`).Replace(wholeChat)
	if !ok || string(got) != want {
		t.Errorf("Append() = %t\n%s\nwant\n%s", ok, got, want)
	}
	for name, usage := range map[string]string{
		"no counts":         "",
		"a count less":      `,"prompt_tokens_details":{"cached_tokens":2}`,
		"another count":     `,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":0,"audio_tokens":3}`,
		"a reasoning count": details + `,"completion_tokens_details":{"reasoning_tokens":0}`,
	} {
		w.Usage = nil
		last, _ := collected(t, chunkUsage(usage))
		w.Usage = last.Usage
		if _, ok := form.Append(nil, w, false); ok {
			t.Errorf("%s: an answer is written", name)
		}
	}
	if last, _ := collected(t, chunkUsage(`,"prompt_tokens_details":{"cached_tokens":2}`)); true {
		w.Usage = last.Usage
		if got, ok := form.Append(nil, w, true); !ok || !strings.Contains(string(got), `"cached_tokens":2,"created_cache_tokens":0`) {
			t.Errorf("continued: %t %s", ok, got)
		}
	}
}

// Other answers have no form, and other streams no answer.
func TestAnswersInOnePieceThatAreNotWritten(t *testing.T) {
	for name, change := range map[string][2]string{
		"reasoning":         {`"reasoning":null`, `"reasoning":"hm"`},
		"a call":            {`"function_call":null`, `"function_call":null,"tool_calls":[{"id":"a"}]`},
		"log probabilities": {`"logprobs":null`, `"logprobs":{"content":[]}`},
		"another role":      {`"assistant"`, `"user"`},
		"two choices":       {`"weight_versions":null}`, `"weight_versions":null},{"index":1}`},
		"experts":           {`"routed_experts":null`, `"routed_experts":"x"`},
		"metrics":           {`"metrics":null`, `"metrics":{"a":1}`},
		"a parser's count":  {`"completion_tokens_details":null`, `"completion_tokens_details":{"reasoning_tokens":0}`},
		"no text":           {`"content":"hi"`, `"content":null`},
		"more behind it":    {`"metrics":null}`, `"metrics":null} x`},
	} {
		if text := strings.Replace(wholeChat, change[0], change[1], 1); text == wholeChat || openai.ReadWholeForm(prompt.APIChat, []byte(text)) != nil {
			t.Errorf("%s: a form is read of %s", name, text)
		}
	}
	if openai.ReadWholeForm(prompt.APICompletions, []byte(wholeChat)) != nil {
		t.Error("a chat is read as a completion")
	}
	for name, event := range map[string]string{
		"reasoning":          chunkOf(`{"reasoning":"hm"}`, ``),
		"a call":             chunkOf(`{"tool_calls":[{"index":0}]}`, ``),
		"a parser at work":   chunkOf(`{}`, `,"finish_reason":null,"token_ids":[3]`),
		"log probabilities":  strings.Replace(chunkOf(`{"content":"a"}`, ``), `"logprobs":null`, `"logprobs":{"content":[]}`, 1),
		"an error":           `{"error":{"code":500}}`,
		"another choice":     strings.Replace(chunkOf(`{"content":"a"}`, ``), `"index":0`, `"index":1`, 1),
		"a cache's transfer": strings.TrimSuffix(chunkOf(`{"content":"a"}`, `,"finish_reason":"stop"`), "}") + `,"kv_transfer_params":{"a":1}}`,
		"metrics":            strings.TrimSuffix(chunkUsage(""), "}") + `,"metrics":{"a":1}}`,
	} {
		if _, taken := collected(t, event); taken {
			t.Errorf("%s: %s is taken", name, event)
		}
	}
}

// A parser makes the choices of an answer that it takes apart.
func TestAParsedAnswerInOnePiece(t *testing.T) {
	called := strings.NewReplacer(`"content":"hi"`, `"content":null`, `"function_call":null`, `"function_call":null,"tool_calls":[{"id":"a"}]`, `"length"`, `"tool_calls"`).Replace(wholeChat)
	for name, text := range map[string]string{"a call": called, "a text": wholeChat} {
		form := openai.ReadParsedForm([]byte(text))
		if form == nil || !form.Parsed() {
			t.Fatalf("%s: the form is not read", name)
		}
		w := &openai.Whole{
			ID: []byte(`"chatcmpl-b"`), Created: []byte("18"), Model: []byte(`"m"`), Finish: []byte(`"tool_calls"`),
			Usage: []byte(`{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":0}}`),
		}
		if _, ok := form.Append(nil, w, false); ok {
			t.Errorf("%s: an answer without choices is written", name)
		}
		w.Choices = []byte(`[{"index":0,"of":"the parser"}]`)
		got, ok := form.Append(nil, w, false)
		_, rest, _ := strings.Cut(wholeChat, `}],"service_tier"`)
		want := `{"id":"chatcmpl-b","object":"chat.completion","created":18,"model":"m","choices":` + string(w.Choices) + strings.NewReplacer(
			`"total_tokens":7,"completion_tokens":2`, `"total_tokens":8,"completion_tokens":3`, `"cached_tokens":4,"created_cache_tokens":1`, `"cached_tokens":2,"created_cache_tokens":0`).Replace(`,"service_tier"`+rest)
		if !ok || string(got) != want {
			t.Errorf("%s: %t\n%s\nwant\n%s", name, ok, got, want)
		}
	}
	for name, change := range map[string][2]string{
		"two choices":      {`"weight_versions":null}`, `"weight_versions":null},{"index":1}`},
		"metrics":          {`"metrics":null`, `"metrics":{"a":1}`},
		"a parser's count": {`"completion_tokens_details":null`, `"completion_tokens_details":{"reasoning_tokens":0}`},
		"more behind it":   {`"metrics":null}`, `"metrics":null} x`},
	} {
		if openai.ReadParsedForm([]byte(strings.Replace(wholeChat, change[0], change[1], 1))) != nil {
			t.Errorf("%s: a form is read", name)
		}
	}
}

// An engine's parser is asked with the finish reason of the engine, and its answer must have the stream's.
func TestTheParsersChoices(t *testing.T) {
	body := string(openai.DerenderWhole("m", []byte(`{"messages":[]}`), []byte("[1,2]"), []uint32{7, 8}, []byte(`"tool_calls"`), nil))
	const want = `{"model":"m","generate_response":{"request_id":"kvpilot","choices":[{"index":0,"token_ids":[7,8],"finish_reason":"stop","stop_reason":null}],"prompt_token_ids":[1,2]},"prompt_token_ids":[1,2],"chat_request":{"messages":[]}}`
	if body != want {
		t.Errorf("%s\nwant\n%s", body, want)
	}
	choices, text := openai.ReadDerenderedWhole([]byte(wholeChat), []byte(`"length"`))
	if text != "hi" || !strings.HasPrefix(string(choices), `[{"index":0,"message":`) || !strings.HasSuffix(string(choices), `"weight_versions":null}]`) {
		t.Errorf("%q of %s", text, choices)
	}
	for name, answer := range map[string]string{
		"another end": strings.Replace(wholeChat, `"length"`, `"stop"`, 1), "no choice": `{"choices":[]}`, "an error": `{"error":{"code":400}}`, "nothing": "",
		"two choices": strings.Replace(wholeChat, `"weight_versions":null}`, `"weight_versions":null},{"finish_reason":"length"}`, 1), "half": wholeChat[:200],
	} {
		if choices, _ := openai.ReadDerenderedWhole([]byte(answer), []byte(`"length"`)); choices != nil {
			t.Errorf("%s: %s", name, choices)
		}
	}
}
