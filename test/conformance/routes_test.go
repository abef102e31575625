package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// exchange is one request of the table.
type exchange struct {
	name, method, path, body string
	// kind is the Content-Type; "-" sends none, empty is JSON.
	kind string
}

// answer is what came of an exchange.
type answer struct {
	Status int
	Header map[string]string
	Body   string
}

// bad are bodies that every route refuses or not as the engine sees fit; %s is a good one without its braces.
func bad() map[string]string {
	return map[string]string{
		"an array": `[{"model":"sim"}]`, "a number": `5`, "null": `null`, "cut off": `{"model":"sim","messages":[`, "no JSON": `hello`, "nothing": ``,
		"no fields": `{}`, "a model that is not there": `{%s,"model":"nobody"}`, "a model that is no text": `{%s,"model":5}`, "no model": `{%s,"model":null}`,
		"an unknown field": `{%s,"strange":{"a":[1]}}`, "limit below zero": `{%s,"max_tokens":-1}`, "limit too large": `{%s,"max_tokens":99999999}`,
		"no choices": `{%s,"n":0}`, "a limit that is no number": `{%s,"max_tokens":"many"}`, "stream options without a stream": `{%s,"stream_options":{"include_usage":true}}`,
		"twice the same field": `{%s,"max_tokens":1,"max_tokens":2}`, "a long prompt": `{%s,"max_tokens":99999999999999999999}`,
	}
}

// goodBodies are the routes with a body that they take, without its braces.
func goodBodies() map[string]string {
	const messages = `"model":"sim","messages":[{"role":"user","content":"Grüße, 世界 🌍"}]`
	const texts = `"model":"sim","input":["one","two"]`
	return map[string]string{
		"/v1/chat/completions": messages + `,"max_tokens":3`, "/v1/completions": `"model":"sim","prompt":"Once upon a time","max_tokens":3`,
		"/v1/messages": messages + `,"max_tokens":3`, "/v1/messages/count_tokens": messages, "/v1/responses": `"model":"sim","input":"hello","max_output_tokens":3`,
		"/v1/embeddings": texts, "/pooling": texts, "/classify": texts, "/score": `"model":"sim","text_1":"a","text_2":["b","c"]`, "/v1/score": `"model":"sim","text_1":"a","text_2":"b"`,
		"/rerank": `"model":"sim","query":"a","documents":["b","c"]`, "/v1/rerank": `"model":"sim","query":"a","documents":["b"]`, "/v2/rerank": `"model":"sim","query":"a","documents":["b"],"top_n":1`,
		"/tokenize": `"model":"sim","prompt":"Once upon"`, "/detokenize": `"model":"sim","tokens":[40,41,42]`,
	}
}

// exchanges is the table: every route, good and bad bodies, streamed and not.
func exchanges() []exchange {
	var all []exchange
	add := func(name, method, path, body string) {
		all = append(all, exchange{name: path + ": " + name, method: method, path: path, body: body})
	}
	for path, good := range goodBodies() {
		add("good", http.MethodPost, path, "{"+good+"}")
		for name, body := range bad() {
			add(name, http.MethodPost, path, strings.ReplaceAll(body, "%s", good))
		}
		add("GET", http.MethodGet, path, "")
		add("DELETE", http.MethodDelete, path, "")
		all = append(all, exchange{name: path + ": text", method: http.MethodPost, path: path, body: "{" + good + "}", kind: "text/plain"},
			exchange{name: path + ": no type", method: http.MethodPost, path: path, body: "{" + good + "}", kind: "-"},
			exchange{name: path + ": a type with parameters", method: http.MethodPost, path: path, body: "{" + good + "}", kind: "application/json; charset=utf-8"})
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
		good := goodBodies()[path]
		add("streamed", http.MethodPost, path, "{"+good+`,"stream":true}`)
		add("streamed, with usage", http.MethodPost, path, "{"+good+`,"stream":true,"stream_options":{"include_usage":true}}`)
		add("streamed, with running usage", http.MethodPost, path, "{"+good+`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
		add("streamed, of a model that is not there", http.MethodPost, path, "{"+good+`,"stream":true,"model":"nobody"}`)
		add("with ids", http.MethodPost, path, "{"+good+`,"return_token_ids":true}`)
		add("beam search", http.MethodPost, path, "{"+good+`,"use_beam_search":true,"n":2}`)
		add("beam search, streamed", http.MethodPost, path, "{"+good+`,"use_beam_search":true,"n":2,"stream":true}`)
	}
	const chat = "/v1/chat/completions"
	for name, messages := range map[string]string{
		"no messages": `[]`, "messages of null": `null`, "a message that is no object": `["hi"]`, "a role of its own": `[{"role":"poet","content":"x"}]`,
		"no content": `[{"role":"user"}]`, "content of null": `[{"role":"assistant","content":null}]`, "a number for content": `[{"role":"user","content":5}]`, "an unknown part": `[{"role":"user","content":[{"type":"smell"}]}]`,
		"parts": `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "half a surrogate": `[{"role":"user","content":"\ud83c"}]`,
		"an image": `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`,
	} {
		add(name, http.MethodPost, chat, `{"model":"sim","max_tokens":2,"messages":`+messages+`}`)
		add(name, http.MethodPost, "/v1/messages", `{"model":"sim","max_tokens":2,"messages":`+messages+`}`)
		add(name+", streamed", http.MethodPost, chat, `{"model":"sim","max_tokens":2,"stream":true,"messages":`+messages+`}`)
	}
	for name, more := range map[string]string{
		"its own template": `"chat_template":"{{ x }}"`, "kwargs that are no object": `"chat_template_kwargs":[1]`, "both ends": `"continue_final_message":true,"add_generation_prompt":true`,
		"tools": `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required"`, "tools that are no list": `"tools":5`, "logprobs": `"logprobs":true,"top_logprobs":2`,
		"two choices": `"n":2`, "stop": `"stop":["e"]`, "ids of its own": `"kv_transfer_params":{"prompt_token_ids":[40,41,42]}`,
	} {
		add(name, http.MethodPost, chat, `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"hi"}],`+more+`}`)
	}
	for name, prompt := range map[string]string{
		"ids": `[40,41,42]`, "a batch": `["a","b"]`, "batches of ids": `[[40],[41,42]]`, "an empty text": `""`, "an empty list": `[]`, "mixed": `["a",5]`, "an id too large": `[99999999]`, "an id below zero": `[-1]`,
		"an object": `{"a":1}`, "no UTF-8": "\"\xc3\x28\"", "many ids": "[" + strings.Repeat("40,", 140_000) + "40]", "a long one": `"` + strings.Repeat("word ", 40_000) + `"`,
	} {
		add("prompt: "+name, http.MethodPost, "/v1/completions", `{"model":"sim","max_tokens":2,"prompt":`+prompt+`}`)
		add("prompt: "+name+", streamed", http.MethodPost, "/v1/completions", `{"model":"sim","max_tokens":2,"stream":true,"prompt":`+prompt+`}`)
	}
	for _, path := range []string{"/v1/models", "/health", "/ping", "/version", "/load", "/v1/responses/resp_none", "/v1/realtime", "/nothing/here", "/v1/nothing"} {
		add("GET", http.MethodGet, path, "")
		add("POST", http.MethodPost, path, "{}")
	}
	add("POST", http.MethodPost, "/v1/responses/resp_none/cancel", "")
	slices.SortFunc(all, func(a, b exchange) int { return strings.Compare(a.name, b.name) })
	return all
}

// TestEveryRouteAnswersAsTheReplicaDoes: status, body and headers through kvpilot are those of the replica itself.
func TestEveryRouteAnswersAsTheReplicaDoes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("sends two thousand requests; not with -short")
	}
	for _, scaleOut := range []bool{true, false} { // with render routes, and with /tokenize alone
		for part := range parts {
			t.Run(fmt.Sprintf("render routes %v, part %d", scaleOut, part), func(t *testing.T) {
				t.Parallel()
				comparePart(t, scaleOut, part)
			})
		}
	}
}

// parts is how many replicas share the table, since an exchange waits for its replica more than it computes.
const parts = 4

// comparePart sends each of the table's exchanges that fall to a part to a replica and through kvpilot before it.
func comparePart(t *testing.T, scaleOut bool, part int) {
	t.Helper()
	s := stack.Start(t, stack.Options{Replicas: 1, Engine: func(c *enginesim.Config) {
		c.ScaleOut = scaleOut
		c.Core.Timing.Speed = 2
	}})
	for i, x := range exchanges() {
		if i%parts != part {
			continue
		}
		fault := "not asked"
		for attempt := 0; attempt < 12 && fault != ""; attempt++ { // pieces of a stream may be joined when the machine is busy
			time.Sleep(time.Duration(attempt) * 20 * time.Millisecond)
			fault = faultOf(x, ask(t, s.Replicas[0], s.Replicas[0], x), ask(t, s.Replicas[0], "http://"+s.HTTP, x))
		}
		if fault != "" {
			t.Error(fault)
		}
	}
}

// faultOf is what is wrong with an answer through kvpilot, next to the replica's own; empty if nothing is.
func faultOf(x exchange, direct, through answer) string {
	want, differs := differences()[x.method+" "+x.path]
	switch {
	case differs && (same(direct, through) || through.Status != want.status):
		return fmt.Sprintf("%s %s does not differ as is said (%s): %s", x.method, x.path, want.because, show(through))
	case !differs && !same(direct, through) && !ownWords(x, direct, through):
		return fmt.Sprintf("%s %s\n direct:  %s\n through: %s", x.method, x.name, show(direct), show(through))
	}
	return ""
}

func same(a, b answer) bool { return show(a) == show(b) }

// difference is an answer that is another one than the replica's, for a reason.
type difference struct {
	status  int
	because string
}

// differences lists all of them but refusals in kvpilot's own words, by method and path.
func differences() map[string]difference {
	const one = "it tells of one engine, and there are many: kvpilot has metrics and replicas of its own"
	return map[string]difference{
		"GET /version": {404, one}, "POST /version": {404, one}, "GET /load": {404, one}, "POST /load": {404, one},
		"GET /v1/realtime": {426, "it says what is missing: an upgrade"},
		"GET /v1/models":   {200, "the list is that of all replicas: no permissions of one, which have random names"},
	}
}

// ownWords reports whether kvpilot refuses, in words of its own, what it cannot find a replica for: with the engine's
// status, in the shape of the API's errors, and only where the body or the request line is at fault.
func ownWords(x exchange, direct, through answer) bool {
	kind := x.name[strings.Index(x.name, ": ")+2:]
	switch kind {
	case "an array", "a number", "null", "cut off", "no JSON", "nothing", "a model that is not there", "a model that is no text", "streamed, of a model that is not there",
		"text", "no type", "GET", "DELETE", "POST", "prompt: no UTF-8", "prompt: no UTF-8, streamed":
	default:
		return false
	}
	var e struct {
		Type  string
		Error struct {
			Message, Type string
			Param         *string
			Code          any
		}
	}
	if json.Unmarshal([]byte(through.Body), &e) != nil || e.Error.Message == "" || e.Error.Type == "" || through.Header["Content-Type"] != "application/json" {
		return false
	}
	if anthropic := strings.HasPrefix(x.path, "/v1/messages"); anthropic != (e.Type == "error") || anthropic != (e.Error.Code == nil) {
		return false
	}
	return direct.Status == through.Status
}

func show(a answer) string {
	header, _ := json.Marshal(a.Header)
	return fmt.Sprintf("%d %s %.600s", a.Status, header, a.Body)
}

// ask sends an exchange, with nothing in the replica's cache.
func ask(t *testing.T, replica, base string, x exchange) answer {
	t.Helper()
	if resp, err := http.Post(replica+"/reset_prefix_cache", "application/json", nil); err == nil {
		resp.Body.Close()
	}
	req, err := http.NewRequestWithContext(t.Context(), x.method, base+x.path, strings.NewReader(x.body))
	if err != nil {
		t.Fatal(err)
	}
	switch x.kind {
	case "":
		req.Header.Set("Content-Type", "application/json")
	case "-":
	default:
		req.Header.Set("Content-Type", x.kind)
	}
	req.Header.Set("X-Request-Id", "the-same")
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{Body: "no answer: " + err.Error()}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", x.name, err)
	}
	a := answer{Status: resp.StatusCode, Header: map[string]string{}, Body: plain(body)}
	for name := range resp.Header {
		if name != "Date" && name != "X-Request-Id" && name != "Server" && !strings.HasPrefix(name, "X-Kvpilot-") {
			a.Header[name] = resp.Header.Get(name)
		}
	}
	if resp.StatusCode < 300 {
		delete(a.Header, "Content-Length") // the times in the body differ in their length, too
	}
	return a
}

// plain is a body without its times.
func plain(body []byte) string {
	lines := bytes.SplitAfter(body, []byte("\n"))
	for i, line := range lines {
		head, value := "", line
		if rest, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			head, value = "data: ", rest
		}
		var v any
		if json.Unmarshal(value, &v) == nil {
			text, _ := json.Marshal(timeless(v))
			lines[i] = append([]byte(head), text...)
		}
	}
	return itemNames.ReplaceAllString(string(bytes.Join(lines, nil)), "$1_")
}

// itemNames are what engines draw at random for the items of a response.
var itemNames = regexp.MustCompile(`\b(msg|rs|fc|call|chatcmpl-tool)[_-][0-9a-f]{16,}`)

func timeless(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if k == "created" || k == "created_at" || k == "completed_at" {
				v[k] = 0
				continue
			}
			v[k] = timeless(x)
		}
	case []any:
		for i := range v {
			v[i] = timeless(v[i])
		}
	}
	return v
}
