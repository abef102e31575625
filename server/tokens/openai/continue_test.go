package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestWhichStreamsAreResumable(t *testing.T) {
	const chat = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]`
	read := func(route openai.Route, body string) bool {
		r, err := openai.Read(openai.Params{Route: route, Body: []byte(body)})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return r.Continuation().ByText()
	}
	for _, more := range []string{
		``, `,"temperature":0.2,"top_p":0.9,"top_k":5,"min_p":0.1`, `,"max_completion_tokens":100`, `,"repetition_penalty":1.1`, `,"stop_token_ids":[5],"ignore_eos":true`,
		`,"stream_options":{"include_usage":true}`, `,"n":1,"stop":null,"tools":[],"tool_choice":"none","logprobs":false,"seed":null`, `,"presence_penalty":0,"frequency_penalty":0.0,"min_tokens":0`,
		`,"response_format":{"type":"text"}`, `,"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","include_reasoning":true`, `,"user":"u","metadata":{"a":1},"priority":2,"cache_salt":"s"`,
		`,"a_field_of_tomorrow":null`, `,"seed":5,"seed":null`, `,"seed":5,"temperature":0`, `,"seed":0`, `,"seed":-5,"temperature":0.1`, `,"seed":5,"temperature":null`, `,"tools":[{"type":"function"}],"tool_choice":"none"`, `,"seed":5,"temperature":0.0`, `,"return_token_ids":false`,
		`,"stop":"x"`, `,"stop":["x","\u00e9"],"include_stop_str_in_output":true`, `,"stop":""`, `,"min_tokens":5`, `,"min_tokens":5,"stop":["x"]`,
	} {
		if !read(openai.RouteChat, chat+more+"}") {
			t.Errorf("a chat with %q is not resumable", more)
		}
	}
	for _, more := range []string{
		`,"n":2`, `,"stop":["x",""]`, `,"stop":["x",5]`, `,"stop":5`, `,"stop":"\ud800"`, `,"stop":"\ufffd"`, `,"stop":["x"],"include_stop_str_in_output":1`, `,"stop":"` + strings.Repeat("x", 1025) + `"`, `,"stop":[` + strings.Repeat(`"x",`, 32) + `"x"]`, `,"seed":1.5`, `,"seed":"5"`, `,"logprobs":true`, `,"top_logprobs":3`, `,"tools":[{"type":"function"}]`, `,"tools":[{"type":"function"}],"tool_choice":"auto"`, `,"tool_choice":"required"`, `,"presence_penalty":0.1`, `,"frequency_penalty":1`,
		`,"min_tokens":"5"`, `,"min_tokens":5.5`, `,"min_tokens":-1`, `,"response_format":{"type":"json_object"}`, `,"structured_outputs":{"regex":"a"}`, `,"guided_json":{}`, `,"bad_words":["a"]`, `,"use_beam_search":true`, `,"echo":true`, `,"return_token_ids":true`,
		`,"kv_transfer_params":{"a":1}`, `,"vllm_xargs":{"a":1}`, `,"prompt_logprobs":0`, `,"include_reasoning":false`, `,"thinking_token_budget":5`, `,"repetition_detection":{}`, `,"a_field_of_tomorrow":true`, `,"watermarking":true`,
		`,"stream":false`, `,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]`,
	} {
		if read(openai.RouteChat, chat+more+"}") {
			t.Errorf("a chat with %q is resumable", more)
		}
	}
	const completion = `{"model":"m","stream":true,"prompt":`
	for prompt, want := range map[string]bool{`"text"`: true, `[1,2]`: true, `["a","b"]`: false, `[[1],[2]]`: false, `"text","logprobs":0`: true, `"text","logprobs":5,"min_tokens":3`: true, `"text","logprobs":2,"stop":"x"`: false, `"text","logprobs":true`: false, `"text","logprobs":"2"`: false, `"text","logprobs":-1`: false, `"text","suffix":"x"`: false, `"text","logprobs":null,"suffix":null`: true} {
		if got := read(openai.RouteCompletions, completion+prompt+"}"); got != want {
			t.Errorf("a completion of %s is resumable: %v, want %v", prompt, got, want)
		}
	}
	if read(openai.RouteMessages, `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`) {
		t.Error("a message is resumable")
	}
}

func TestTheContinuationAsksForTheRest(t *testing.T) {
	r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(
		`{"model":"alias", "temperature": 0.5 ,"max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true},"stop":[],"temperature":0.25,"truncate_prompt_tokens":3}`)})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model":"m","stream":true,"return_token_ids":true,"max_tokens":48,"prompt":[1,2,3],"stream_options":{"include_usage":true},"temperature":0.25}`
	if got := string(r.Continuation().Body(openai.Rest{Model: "m", IDs: []uint32{1, 2, 3}, Limit: 48, WithIDs: true})); got != want {
		t.Errorf("Body() = %s\nwant %s", got, want)
	}
	want = `{"model":"m","stream":true,"max_tokens":48,"prompt":[1],"min_tokens":2,"include_stop_str_in_output":true}`
	r, err = openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"stop":["a"],"min_tokens":4,"include_stop_str_in_output":true,"max_tokens":50}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.Continuation().Body(openai.Rest{Model: "m", IDs: []uint32{1}, Limit: 48, Least: 2})); got != want {
		t.Errorf("Body() = %s\nwant %s", got, want)
	}
	if n := r.AnswerLimit(); n != 50 {
		t.Errorf("AnswerLimit() = %d", n)
	}
}

func TestStopStrings(t *testing.T) {
	r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"stop":["a\u00e9\n","b"],"min_tokens":4}`)})
	if err != nil {
		t.Fatal(err)
	}
	s, ok := r.Stops()
	if !ok || !slices.Equal(s.Strings, []string{"aé\n", "b"}) || s.Included || s.Least != 4 || s.Reach() != 2 {
		t.Errorf("Stops() = %+v, %v, which reach %d characters back", s, ok, s.Reach())
	}
}

func TestLogprobsOfACompletionAreShifted(t *testing.T) {
	const one = `{"text_offset":[0, 3],"token_logprobs":[-0.5,null],"tokens":["The","\u00e9 \ud83d\ude00"],"top_logprobs":[{"text_offset":[1]},null]}`
	if end, ok := openai.TextEnd([]byte(one)); !ok || end != 6 {
		t.Errorf("TextEnd() = %d, %v; want 6", end, ok)
	}
	want := strings.Replace(one, "[0, 3]", "[10,13]", 1)
	if got := string(openai.ShiftOffsets(nil, []byte(one), 10)); got != want {
		t.Errorf("ShiftOffsets() = %s, want %s", got, want)
	}
	for _, other := range []string{`{}`, `{"text_offset":[],"tokens":[]}`, `{"text_offset":[1],"tokens":[5]}`, `{"content":[]}`, `x`} {
		if end, ok := openai.TextEnd([]byte(other)); ok {
			t.Errorf("TextEnd(%s) = %d", other, end)
		}
	}
	r, err := openai.Read(openai.Params{Route: openai.RouteCompletions, Body: []byte(`{"logprobs":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.Continuation().Body(openai.Rest{Model: "m", IDs: []uint32{1}, Limit: 4})); got != `{"model":"m","stream":true,"max_tokens":4,"prompt":[1],"logprobs":2}` {
		t.Errorf("Body() = %s", got)
	}
}

func TestFaultsInAStream(t *testing.T) {
	for data, want := range map[string]int{
		`{"error":{"message":"x","type":"y","param":null,"code":500}}`: 500, `{"error":{"message":"x","code":400}}`: 400, `{"error":"text"}`: 500, `{"error":{"message":"x"}}`: 500,
		`{"error":{"message":"x","code":"server_error"}}`: 500, `{"error":{"message":"x","code":"invalid_request_error"}}`: 400, `{"error":null,"choices":[]}`: 0, `{"choices":[]}`: 0,
	} {
		var c openai.Chunk
		if !openai.ReadChunk([]byte(data), &c) || c.Fault != want {
			t.Errorf("%s: fault %d, want %d", data, c.Fault, want)
		}
	}
}

// FuzzReadChunk checks that nothing panics, and that taking the ids out changes nothing but the ids.
func FuzzReadChunk(f *testing.F) {
	for _, s := range []string{
		`{"id":"a","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2],"prompt_text":null}`,
		`{"id":"a","choices":[{"index":0,"text":"x\"token_ids\":[1]","finish_reason":"stop","stop_reason":5,"prompt_token_ids":null,"token_ids":[1, 2]}],"usage":{"prompt_tokens_details":{"cached_tokens":4}}}`,
		`{"choices":[{"token_ids":[4294967296]},{"token_ids":[2]}]}`, `{"error":{"code":"x"}}`, `{"choices":{}}`, `{"choices":[{"delta":[]}]}`, `{"choices":[{"token_ids":[1],"token_ids":[2]}]}`, `{`, `[]`,
		`{"choices":[{"token_ids":`, `{"prompt_token_ids":[1,2`, `{"prompt_token_ids":[1,[2]]}`, `{"prompt_token_ids":[1,,2]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c openai.Chunk
		if !openai.ReadChunk(data, &c) {
			return
		}
		c.CachedTokens()
		var ids []uint32
		openai.EachID(c.IDs, func(id uint32) bool { ids = append(ids, id); return len(ids) < 100 })
		out := c.Without(nil)
		if c.IDs == nil && c.PromptIDs == nil {
			if !bytes.Equal(out, data) {
				t.Fatalf("%q became %q", data, out)
			}
			return
		}
		var before, after any
		if json.Unmarshal(data, &before) != nil {
			return // trailing bytes, or what only Python reads
		}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
		if !reflect.DeepEqual(withoutLists(before), withoutLists(after)) {
			t.Fatalf("%q became %q", data, out)
		}
	})
}

// withoutLists takes members that may hold ids out of a chunk.
func withoutLists(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if slices.Contains([]string{"token_ids", "prompt_token_ids"}, name) {
				delete(v, name)
				continue
			}
			v[name] = withoutLists(inner)
		}
	case []any:
		for i := range v {
			v[i] = withoutLists(v[i])
		}
	}
	return v
}

func TestEachID(t *testing.T) {
	for raw, want := range map[string]string{
		`[]`: "[] true", `[1]`: "[1] true", `[1,2, 4294967295]`: "[1 2 4294967295] true", `[4294967296]`: "[] false", `[1.5]`: "[] false", `[,1]`: "[] false", `["1"]`: "[] false", `null`: "[] false", `[1,]`: "[1] false",
	} {
		ids := []uint32{}
		ok := openai.EachID([]byte(raw), func(id uint32) bool { ids = append(ids, id); return true })
		if got := fmt.Sprint(ids, ok); got != want {
			t.Errorf("EachID(%s) = %s, want %s", raw, got, want)
		}
	}
}

// A continuation draws with a seed of its own: not the client's, which chose the first tokens already, and the same one for the same break.
func TestTheSeedOfAContinuation(t *testing.T) {
	of := func(more string) openai.Continuation {
		r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"stream":true,"messages":[{"role":"user","content":"x"}]` + more + `}`)})
		if err != nil {
			t.Fatal(err)
		}
		return r.Continuation()
	}
	for _, seed := range []string{"7", "0", "-5", "9223372036854775807", "-9223372036854775808"} {
		c := of(`,"temperature":0.8,"seed":` + seed)
		if c.Way() != openai.WayText {
			t.Errorf("seed %s: another way than by text", seed)
		}
		seen := map[int64]bool{}
		for answer := range 100 {
			s, ok := c.Seed(answer)
			again, _ := c.Seed(answer)
			if !ok || s != again || seen[s] || answer == 0 && fmt.Sprint(s) != seed || answer > 0 && (fmt.Sprint(s) == seed || s < 0) {
				t.Fatalf("seed %s behind %d tokens: %d, %v", seed, answer, s, ok)
			}
			seen[s] = true
		}
		s, _ := c.Seed(3)
		if body := string(c.Body(openai.Rest{Model: "m", IDs: []uint32{1, 2, 3, 4}, Answer: 3, Limit: 5})); !strings.Contains(body, fmt.Sprintf(`,"seed":%d,`, s)) {
			t.Errorf("the continuation is %s, want the seed %d", body, s)
		}
	}
	for _, more := range []string{``, `,"seed":null`, `,"seed":7,"temperature":0`, `,"seed":"7"`} {
		if s, ok := of(more).Seed(3); ok {
			t.Errorf("%s: the seed is %d, want none", more, s)
		}
	}
}

// Messages and responses are repeated where nothing is drawn, responses with a seed, too, and where nothing but the request decides on the answer.
func TestWhatIsRepeated(t *testing.T) {
	for body, want := range map[string]bool{
		`{"stream":true,"temperature":0,"messages":[{"role":"user","content":"x"}],"max_tokens":5}`:                                         true,
		`{"stream":true,"temperature":0,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"a","input_schema":{}}],"thinking":{}}`: true,
		`{"stream":true,"temperature":0,"messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"a":1}}`:                           false,
		`{"stream":true,"messages":[{"role":"user","content":"x"}]}`:                                                                        false,
		`{"stream":true,"temperature":0.5,"seed":1,"messages":[{"role":"user","content":"x"}]}`:                                             false,
		`{"stream":false,"temperature":0,"messages":[{"role":"user","content":"x"}]}`:                                                       false,
		`{"stream":true,"temperature":0,"input":"x"}`:                                                                                       true,
		`{"stream":true,"temperature":0.5,"seed":1,"input":[{"role":"user","content":"x"}]}`:                                                true,
		`{"stream":true,"temperature":0.5,"input":"x"}`:                                                                                     false,
		`{"stream":true,"temperature":0,"input":"x","previous_response_id":"resp_1"}`:                                                       false,
		`{"stream":true,"temperature":0,"input":"x","previous_response_id":null}`:                                                           true,
		`{"stream":true,"temperature":0,"input":"x","background":true}`:                                                                     false,
		`{"stream":true,"temperature":0,"input":"x","include":["message.output_text.logprobs"]}`:                                            false,
		`{"stream":true,"temperature":0,"input":"x","include":["reasoning.encrypted_content"]}`:                                             true,
		`{"stream":true,"temperature":0,"input":"x","tools":[{"type":"function","name":"a"}]}`:                                              true,
		`{"stream":true,"temperature":0,"input":"x","tools":[{"type":"function","name":"a"},{"type":"mcp","server_label":"b"}]}`:            false,
		`{"stream":true,"temperature":0,"input":"x","tools":"all"}`:                                                                         false,
	} {
		route := openai.RouteResponses
		if strings.Contains(body, `"messages"`) {
			route = openai.RouteMessages
		}
		r, err := openai.Read(openai.Params{Route: route, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Continuation().Way() == openai.WayRepeat; got != want {
			t.Errorf("%s is repeated: %v, want %v", body, got, want)
		}
	}
}

// vLLM writes further members since 0.33, although they are null. A continuation has those that the engine's own stream would have.
func TestContinuationsHaveTheMembersOfTheEnginesVersion(t *testing.T) {
	const chat, text = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",`, `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m",`
	const head = `{"id":"cmpl-2","object":"text_completion","created":2,"model":"m",`
	for _, tt := range []struct {
		engine, chat, text string // the members after Head
	}{
		{
			`"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[7]}]}`,
			`"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`,
			`"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}`,
		},
		{
			`"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[7],"weight_versions":null}],"kv_transfer_params":null}`,
			`"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}`,
			`"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null,"weight_versions":null}],"kv_transfer_params":null}`,
		},
		{
			`"choices":[{"index":0,"text":"b","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":[8],"weight_versions":null}],"system_fingerprint":"f","kv_transfer_params":null}`,
			`"choices":[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"weight_versions":null}],"system_fingerprint":"f","kv_transfer_params":null}`,
			`"choices":[{"index":0,"text":"b","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null,"weight_versions":null}],"system_fingerprint":"f","kv_transfer_params":null}`,
		},
	} {
		var s openai.Chunks
		var c openai.Chunk
		for range 2 { // the second time by comparison with the first
			if !s.Read([]byte(head+tt.engine), &c) {
				t.Fatalf("not read: %s", tt.engine)
			}
		}
		for api, want := range map[prompt.API]string{prompt.APIChat: chat + tt.chat, prompt.APICompletions: text + tt.text} {
			w := openai.Continued{API: api, Head: []byte(want[:strings.Index(want, `"choices"`)])}
			if got := string(w.Event(nil, &c)); got != want {
				t.Errorf("%s\nis %s\nwant %s", tt.engine, got, want)
			}
		}
	}
}
