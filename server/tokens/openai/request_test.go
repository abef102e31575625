package openai_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func read(t *testing.T, p openai.Params) *openai.Request {
	t.Helper()
	r, err := openai.Read(p)
	if err != nil {
		t.Fatalf("Read(%.80q): %v", p.Body, err)
	}
	return r
}

func TestTheBodysShapeDecidesWhatIsRouted(t *testing.T) {
	cases := []struct {
		name, body string
		route      openai.Route
		kind       prompt.Kind
		check      func(*prompt.Prompt) bool
	}{
		{"chat", `{"messages":[{"role":"user","content":"hi"}]}`, openai.RouteChat, prompt.KindChat,
			func(p *prompt.Prompt) bool {
				return len(p.Messages) == 1 && string(p.Messages[0]) == `{"role":"user","content":"hi"}` && !p.HasMedia
			}},
		{"completion", `{"prompt":"hi"}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "hi" }},
		{"empty messages and a prompt", `{"messages":[],"prompt":"hi"}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "hi" }},
		{"null messages and a prompt", `{"messages":null,"prompt":"hi"}`, openai.RouteCompletions, prompt.KindText, nil},
		{"messages and a prompt", `{"prompt":"x","messages":[{"role":"user","content":"hi"}]}`, openai.RouteChat, prompt.KindChat, nil},
		{"batch of texts", `{"prompt":["a","b"]}`, openai.RouteCompletions, prompt.KindBatch,
			func(p *prompt.Prompt) bool { return p.Text == "a" && slices.Equal(p.Texts, []string{"a", "b"}) }},
		{"batch of one text", `{"prompt":["a"]}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "a" }},
		{"ids", `{"prompt":[1, 2,3 ]}`, openai.RouteCompletions, prompt.KindIDs, func(p *prompt.Prompt) bool { return slices.Equal(p.IDs, []uint32{1, 2, 3}) }},
		{"batch of ids", `{"prompt":[[1,2],[3]]}`, openai.RouteCompletions, prompt.KindBatchIDs,
			func(p *prompt.Prompt) bool { return len(p.Batch) == 2 && slices.Equal(p.IDs, []uint32{1, 2}) }},
		{"largest id", `{"prompt":[4294967295]}`, openai.RouteCompletions, prompt.KindIDs, func(p *prompt.Prompt) bool { return p.IDs[0] == 1<<32-1 }},
		{"id too large", `{"prompt":[4294967296]}`, openai.RouteAny, prompt.KindNone, nil},
		{"negative id", `{"prompt":[1,-2]}`, openai.RouteAny, prompt.KindNone, nil},
		{"fraction as id", `{"prompt":[1,2.5]}`, openai.RouteAny, prompt.KindNone, nil},
		{"mixed list", `{"prompt":[1,"a"]}`, openai.RouteAny, prompt.KindNone, nil},
		{"mixed list, text first", `{"prompt":["a",1]}`, openai.RouteAny, prompt.KindNone, nil},
		{"image only", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, openai.RouteChat, prompt.KindChat,
			func(p *prompt.Prompt) bool { return p.HasMedia }},
		{"image without a type", `{"messages":[{"role":"user","content":[{"image_url":"x"}]}]}`, openai.RouteChat, prompt.KindChat,
			func(p *prompt.Prompt) bool { return p.HasMedia }},
		{"text parts", `{"messages":[{"content":[{"type":"text","text":"a"}]},{"content":[{"type":"text","text":"b"}]}]}`, openai.RouteChat, prompt.KindChat,
			func(p *prompt.Prompt) bool { return !p.HasMedia && len(p.Messages) == 2 }},
		{"image in a tool result", `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{}}]}]}]}`, openai.RouteChat, prompt.KindChat,
			func(p *prompt.Prompt) bool { return p.HasMedia }},
		{"nothing", `{}`, openai.RouteAny, prompt.KindNone, nil},
		{"empty prompt", `{"prompt":""}`, openai.RouteAny, prompt.KindNone, nil},
		{"empty list", `{"prompt":[]}`, openai.RouteAny, prompt.KindNone, nil},
		{"messages of a wrong type", `{"messages":"hello"}`, openai.RouteAny, prompt.KindNone, nil},
		{"messages that are no objects", `{"messages":[1]}`, openai.RouteAny, prompt.KindNone, nil},
		{"input text", `{"input":"hi"}`, openai.RouteResponses, prompt.KindText, func(p *prompt.Prompt) bool { return p.API == prompt.APIResponses }},
		{"input items", `{"input":[{"role":"user","content":"x"}],"instructions":"be kind"}`, openai.RouteResponses, prompt.KindChat,
			func(p *prompt.Prompt) bool { return string(p.Field("instructions")) == `"be kind"` }},
		{"last of equal keys", `{"prompt":"a","prompt":"b"}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "b" }},
		{"last of equal keys is null", `{"prompt":"a","prompt":null}`, openai.RouteAny, prompt.KindNone, nil},
		{"escaped key", `{"pro\u006dpt":"a\n\u00e9\ud83d\ude00"}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "a\né😀" }},
		{"lone surrogate", `{"prompt":"a\ud83d!"}`, openai.RouteCompletions, prompt.KindText, func(p *prompt.Prompt) bool { return p.Text == "a\uFFFD!" }},
		{"byte order mark", "\uFEFF" + `{"prompt":"a"}`, openai.RouteCompletions, prompt.KindText, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := read(t, openai.Params{Body: []byte(c.body)})
			if r.Route != c.route || r.Prompt.Kind != c.kind {
				t.Errorf("got route %v, prompt %v; want %v, %v", r.Route, r.Prompt.Kind, c.route, c.kind)
			}
			if c.check != nil && !c.check(&r.Prompt) {
				t.Errorf("unexpected prompt %+v", r.Prompt)
			}
		})
	}
}

func TestAFixedRouteReadsItsOwnMember(t *testing.T) {
	body := []byte(`{"messages":[{"role":"user","content":"hi"}],"prompt":"text","input":"in"}`)
	for route, want := range map[openai.Route]prompt.API{
		openai.RouteChat: prompt.APIChat, openai.RouteCompletions: prompt.APICompletions,
		openai.RouteResponses: prompt.APIResponses, openai.RouteMessages: prompt.APIMessages, openai.RouteEmbeddings: prompt.APIOther,
	} {
		r := read(t, openai.Params{Route: route, Body: body})
		if r.Prompt.API != want || (r.Prompt.Kind == prompt.KindNone) != (want == prompt.APIOther) {
			t.Errorf("%v: got api %v, kind %v", route, r.Prompt.API, r.Prompt.Kind)
		}
	}
}

func TestLimitsAndOptions(t *testing.T) {
	body := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":7,"n":3,
		"cache_salt":"s","priority":-2,"user":"u","request_id":"r","truncate_prompt_tokens":-1,"kv_transfer_params":{"a":1},
		"tools":[{"type":"function"}],"tool_choice":"none","temperature":0.5,"top_p":NaN}`
	r := read(t, openai.Params{Route: openai.RouteChat, Body: []byte(body)})
	if r.Model != "m" || !r.Stream || !r.IncludeUsage || r.MaxTokens != 7 || r.N != 3 || r.Salt != "s" || r.Priority != -2 ||
		r.User != "u" || r.RequestID != "r" || r.Prompt.Truncate != -1 || !r.KVTransfer {
		t.Errorf("got %+v", r)
	}
	if len(r.Prompt.Fields) != 3 || string(r.Prompt.Field("tools")) != `[{"type":"function"}]` {
		t.Errorf("fields: got %v", r.Prompt.Fields)
	}
	if string(r.Raw("top_p")) != "NaN" || !r.Present("temperature") || r.Present("top_k") {
		t.Error("members are not found by name")
	}
}

func TestNumbersAndFlagsAreReadAsPydanticDoes(t *testing.T) {
	for body, want := range map[string]int{
		`{"max_tokens":5.0}`: 5, `{"max_tokens":"12"}`: 12, `{"max_tokens":1e2}`: 100, `{"max_tokens":-4}`: 0, `{"max_tokens":1.5}`: 0,
		`{"max_tokens":1e999}`: 0, `{"max_tokens":null}`: 0, `{"max_tokens":{}}`: 0, `{"max_tokens":99999999999999999999}`: 0,
	} {
		if got := read(t, openai.Params{Route: openai.RouteChat, Body: []byte(body)}).MaxTokens; got != want {
			t.Errorf("%s: got %d, want %d", body, got, want)
		}
	}
	for body, want := range map[string]bool{
		`{"stream":true}`: true, `{"stream":1}`: true, `{"stream":"True"}`: true, `{"stream":"on"}`: true,
		`{"stream":false}`: false, `{"stream":0}`: false, `{"stream":null}`: false, `{"stream":[]}`: false, `{"stream":true,"stream":false}`: false,
	} {
		if got := read(t, openai.Params{Body: []byte(body)}).Stream; got != want {
			t.Errorf("%s: got %v, want %v", body, got, want)
		}
	}
}

func TestSession(t *testing.T) {
	cases := []struct {
		name, body, names string
		headers           http.Header
		want, source      string
	}{
		{"body first", `{"session_id":"b","vllm_xargs":{"session_id":"x"}}`, "x-session-id", http.Header{"X-Session-Id": {"h"}}, "b", "session_id"},
		{"then the header", `{"vllm_xargs":{"session_id":"x"}}`, "x-session-id", http.Header{"X-Session-Id": {"h"}}, "h", "x-session-id"},
		{"then vllm_xargs", `{"vllm_xargs":{"session_id":"x"},"prompt_cache_key":"k"}`, "x-session-id", nil, "x", "vllm_xargs"},
		{"then prompt_cache_key", `{"prompt_cache_key":"k"}`, "x-session-id", nil, "k", "prompt_cache_key"},
		{"underscores and case", `{}`, "x-session-id", http.Header{"X_Session_ID": {"h"}}, "h", "x-session-id"},
		{"gRPC metadata", `{}`, "X-Session-Id", http.Header{"x-session_id": {"h"}}, "h", "X-Session-Id"},
		{"the exact name before others", `{}`, "x-session-id", http.Header{"X_session_id": {"u"}, "X-Session-Id": {"h"}}, "h", "x-session-id"},
		{"of two others the first by name", `{}`, "x-session-id", http.Header{"X_session_id": {"u"}, "X_session-Id": {"h"}}, "h", "x-session-id"},
		{"an empty value is none", `{}`, "x-session-id", http.Header{"X-Session-Id": {""}}, "", ""},
		{"turned off", `{}`, "", http.Header{"X-Session-Id": {"h"}}, "", ""},
		{"a number is none", `{"session_id":5}`, "x-session-id", nil, "", ""},
		{"too long", `{"session_id":"` + strings.Repeat("s", 513) + `"}`, "x-session-id", http.Header{"X-Session-Id": {strings.Repeat("h", 513)}}, "", ""},
		{"the first of the names", `{}`, "a b", http.Header{"B": {"2"}, "A": {"1"}}, "1", "a"},
		{"an empty one is left out", `{}`, "a b", http.Header{"B": {"2"}, "A": {""}}, "2", "b"},
		{"Claude Code", `{}`, "x-claude-code-session-id", http.Header{"X-Claude-Code-Session-Id": {"c"}}, "c", "x-claude-code-session-id"},
		{
			"its agent", `{}`, "x-claude-code-session-id", http.Header{"X-Claude-Code-Session-Id": {"c"}, "X-Claude-Code-Agent-Id": {"7"}},
			"c/7", "x-claude-code-session-id",
		},
		{"Codex", `{"prompt_cache_key":"p"}`, "thread-id session-id", http.Header{"Session_id": {"c"}}, "c", "session-id"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := read(t, openai.Params{Body: []byte(c.body), Header: c.headers, SessionHeaders: strings.Fields(c.names)})
			if got.Session != c.want || got.SessionSource != c.source {
				t.Errorf("got %q from %q, want %q from %q", got.Session, got.SessionSource, c.want, c.source)
			}
		})
	}
}

func TestTheSessionInAnthropicsUser(t *testing.T) {
	for user, want := range map[string]string{
		"user_0a1b_account_2c-3d_session_4e-5f": "4e-5f", "user_0a1b": "", "somebody_session_1": "", "user_x_session_": "",
	} {
		r := read(t, openai.Params{Route: openai.RouteMessages, Body: []byte(`{"messages":[],"metadata":{"user_id":"` + user + `"}}`)})
		if r.Session != want {
			t.Errorf("%s: got %q, want %q", user, r.Session, want)
		}
	}
}

func TestTheLastRequestOfASession(t *testing.T) {
	for name, want := range map[string]bool{"X-Kvpilot-Session-Final": true, "x_dynamo_session_final": true, "X-Session-Final": false} {
		if got := read(t, openai.Params{Body: []byte(`{}`), Header: http.Header{name: {"true"}}}).SessionEnds; got != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if read(t, openai.Params{Body: []byte(`{}`), Header: http.Header{"X-Kvpilot-Session-Final": {"perhaps"}}}).SessionEnds {
		t.Error("neither true nor false is no end")
	}
	for said, want := range map[string]time.Duration{"90000": 90 * time.Second, "4000000000": 24 * time.Hour, "-1": 0, "soon": 0, "": 0} {
		if got := read(t, openai.Params{Body: []byte(`{}`), Header: http.Header{"X-Kvpilot-Session-Return-Ms": {said}}}).SessionReturn; got != want {
			t.Errorf("a return in %q is one in %s, want %s", said, got, want)
		}
	}
}

func TestARefusalSaysWhere(t *testing.T) {
	deep := strings.Repeat("[", 300) + strings.Repeat("]", 300)
	cases := []struct {
		name, body, says, param string
		offset                  int
	}{
		{"empty", ``, "body is empty", "", 0},
		{"no JSON", `hello`, "expected a value", "", 0},
		{"no object", `[1]`, "must be a JSON object", "", 3},
		{"model is a number", `{"model":5}`, "model must be a string", "model", 9},
		{"cut off", `{"model":"a","messages":[{"role"`, "the text ends", "messages", 32},
		{"comma missing", `{"model":"a" "n":1}`, "expected ','", "", 13},
		{"trailing comma", `{"model":"a",}`, "member name", "", 13},
		{"trailing comma in a list", `{"messages":[1,]}`, "expected a value", "messages", 15},
		{"single quotes", `{'model':1}`, "double quotes", "", 1},
		{"control character", "{\"prompt\":\"a\nb\"}", "control character", "prompt", 12},
		{"invalid UTF-8", "{\"prompt\":\"a\xffb\"}", "invalid UTF-8", "prompt", 12},
		{"invalid escape", `{"prompt":"a\x"}`, "invalid escape", "prompt", 12},
		{"invalid unicode escape", `{"prompt":"a\u12g4"}`, `invalid \u escape`, "prompt", 12},
		{"leading zero", `{"n":01}`, "expected ','", "", 6},
		{"fraction without digits", `{"n":1.}`, "expected a digit", "n", 7},
		{"word", `{"n":tru}`, "unknown word", "n", 5},
		{"extra data", `{"n":1} x`, "extra data", "", 8},
		{"too deep", `{"tools":` + deep + `}`, "nested too deep", "tools", 9 + 255},
		{"UTF-16", "\xFF\xFE{\x00}\x00", "is UTF-16, and JSON must be UTF-8", "", 0},
		{"UTF-16 without a mark", "{\x00}\x00", "is UTF-16, and JSON must be UTF-8", "", 0},
		{"the mark of UTF-8 in another place", "{}\xEF\xBB\xBF", "extra data", "", 2},
		{"NUL", "{\"n\":\x00}", "expected a value", "n", 5},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := openai.Read(openai.Params{Body: []byte(c.body)})
			var bad *openai.BadRequest
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want a BadRequest", err)
			}
			if !strings.Contains(bad.Message, c.says) || bad.Param != c.param || bad.Offset != c.offset || bad.Status != http.StatusBadRequest {
				t.Errorf("got %q, param %q, offset %d; want %q, %q, %d", bad.Message, bad.Param, bad.Offset, c.says, c.param, c.offset)
			}
		})
	}
}

func TestATruncatedBodyIsReadAsFarAsItGoes(t *testing.T) {
	whole := `{"model":"m","session_id":"s","messages":[{"role":"user","content":"one"},{"role":"user","content":"two"}],"prompt":"half a text\n and","max_tokens":3}`
	for cut := range whole {
		r, err := openai.Read(openai.Params{Body: []byte(whole[:cut]), Truncated: true})
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if !r.Truncated {
			t.Fatalf("cut at %d: not marked as truncated", cut)
		}
		if cut > 75 && (r.Model != "m" || r.Session != "s" || len(r.Prompt.Messages) == 0 || !r.Prompt.Partial) {
			t.Fatalf("cut at %d: got %+v", cut, r)
		}
	}
	if r := read(t, openai.Params{Body: []byte(whole), Truncated: true}); r.Truncated || r.Prompt.Partial {
		t.Error("a whole body is marked as truncated")
	}
	if r := read(t, openai.Params{Body: []byte(`{"prompt":"half a text\n an\u00`), Truncated: true}); r.Prompt.Text != "half a text\n an" {
		t.Errorf("got text %q", r.Prompt.Text)
	}
	if r := read(t, openai.Params{Body: []byte(`{"prompt":[1,2,34`), Truncated: true}); !slices.Equal(r.Prompt.IDs, []uint32{1, 2}) {
		t.Errorf("got ids %v", r.Prompt.IDs)
	}
}
