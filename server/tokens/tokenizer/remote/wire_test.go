package remote

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

func chatPrompt(message string, fields ...string) *prompt.Prompt {
	p := &prompt.Prompt{Kind: prompt.KindChat, API: prompt.APIChat, Model: "m", Messages: [][]byte{[]byte(message)}}
	for i := 0; i+1 < len(fields); i += 2 {
		p.Fields = append(p.Fields, prompt.Field{Name: fields[i], Value: []byte(fields[i+1])})
	}
	return p
}

// The mapping of a chat request to /tokenize, by the engine's version.
func TestTokenizeBodies(t *testing.T) {
	const user = `{"role":"user","content":"x"}`
	for _, tc := range []struct {
		name, version, message string
		fields                 []string
		job                    Job
		want                   string // members besides model and messages
		message2               string // the message as sent, when it differs
	}{
		{name: "plain", want: `{}`},
		{name: "copied", fields: []string{"chat_template", `"t"`, "mm_processor_kwargs", `{"a":1}`, "media_io_kwargs", `{"b":1}`, "add_special_tokens", "true", "add_generation_prompt", "false"},
			want: `{"chat_template":"t","mm_processor_kwargs":{"a":1},"media_io_kwargs":{"b":1},"add_special_tokens":true,"add_generation_prompt":false}`},
		{name: "continued", fields: []string{"continue_final_message", "true"}, want: `{"continue_final_message":true,"add_generation_prompt":false}`},
		{name: "not continued", fields: []string{"continue_final_message", "false"}, want: `{"continue_final_message":false}`},
		{name: "documents", fields: []string{"documents", `[1]`, "chat_template_kwargs", `{"a":1}`}, want: `{"chat_template_kwargs":{"a":1,"documents":[1]}}`},
		{name: "null fields", fields: []string{"documents", "null", "tools", "null", "reasoning_effort", "null"}, want: `{}`},
		{name: "effort before 0.14", version: "0.13.0", fields: []string{"reasoning_effort", `"low"`}, want: `{}`},
		{name: "effort from 0.14", version: "0.14.1", fields: []string{"reasoning_effort", `"low"`}, want: `{"chat_template_kwargs":{"reasoning_effort":"low"}}`},
		{name: "effort from 0.23", version: "0.23.0", fields: []string{"reasoning_effort", `"none"`}, want: `{"chat_template_kwargs":{"reasoning_effort":"none","enable_thinking":false}}`},
		{name: "effort beside thinking", version: "0.23.0", fields: []string{"reasoning_effort", `"high"`, "chat_template_kwargs", `{"enable_thinking":false}`},
			want: `{"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"high"}}`},
		{name: "server defaults in 0.15", version: "0.15.0", job: Job{TemplateDefaults: []byte(`{"a":1,"b":2}`)}, fields: []string{"chat_template_kwargs", `{"b":3}`},
			want: `{"chat_template_kwargs":{"a":1,"b":3}}`},
		{name: "server defaults in 0.18", version: "0.18.0", job: Job{TemplateDefaults: []byte(`{"a":1}`)}, want: `{}`},
		{name: "tools", fields: []string{"tools", `[{"b": 1,"a":2}]`, "tool_choice", `"none"`}, want: `{"tools":[{"b": 1,"a":2}]}`},
		{name: "tools left out by setting", job: Job{DropToolsOnNone: true}, fields: []string{"tools", `[1]`, "tool_choice", `"none"`}, want: `{}`},
		{name: "tools left out by 0.9", version: "0.9.2", fields: []string{"tools", `[1]`, "tool_choice", `"none"`}, want: `{}`},
		{name: "reasoning renamed", message: `{"role":"assistant","reasoning_content":"r","content":"c"}`, want: `{}`, message2: `{"role":"assistant","reasoning":"r","content":"c"}`},
		{name: "reasoning mentioned", message: `{"role":"user","content":"reasoning_content"}`, want: `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.message == "" {
				tc.message = user
			}
			j := tc.job
			j.Model, j.Prompt = "m", chatPrompt(tc.message, tc.fields...)
			path, body, err := j.request(&endpoint{vers: parseVersion(tc.version)}, false)
			if err != nil || path != "/tokenize" {
				t.Fatalf("request() = %s, %v", path, err)
			}
			var got, want map[string]any
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if tc.message2 == "" {
				tc.message2 = tc.message
			}
			if !strings.Contains(string(body), `"messages":[`+tc.message2+`]`) || got["model"] != "m" {
				t.Errorf("body is %s, want the message %s", body, tc.message2)
			}
			delete(got, "messages")
			delete(got, "model")
			if !reflect.DeepEqual(got, want) {
				t.Errorf("fields are %v, want %v", got, want)
			}
		})
	}
}

func TestRenderSendsTheClientsBodyWithTheEnginesModel(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"alias","x":[1, 2],"messages":[]}`:  `{"model":"m","x":[1, 2],"messages":[]}`,
		` {"x":1, "model" : "alias" }`:                ` {"x":1, "model" : "m" }`,
		`{"x":1}`:                                     `{"model":"m","x":1}`,
		`{ }`:                                         `{"model":"m" }`,
		`{"model":"m","y":"\"model\":"}`:              `{"model":"m","y":"\"model\":"}`,
		`{"model":"a","z":{"model":"b"},"model":"c"}`: `{"model":"a","z":{"model":"b"},"model":"m"}`,
	} {
		if got := string(withModel([]byte(body), "m")); got != want {
			t.Errorf("withModel(%s) = %s, want %s", body, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for s, want := range map[string]version{
		"": {}, "dev": {}, "0.24.0": {0, 24, 0}, "0.11.1rc2.dev3+g12": {0, 11, 1}, "1": {1, 0, 0}, "0.10": {0, 10, 0},
	} {
		if got := parseVersion(s); got != want {
			t.Errorf("parseVersion(%q) = %v, want %v", s, got, want)
		}
	}
	if v := parseVersion("0.9.2"); v.atLeast(0, 10) || !v.before(0, 10) {
		t.Error("0.9 is not before 0.10")
	}
	if v := (version{}); v.atLeast(0, 0) || v.before(9, 9) {
		t.Error("an unknown version is compared")
	}
}

func TestMediaAreRead(t *testing.T) {
	j := &Job{Op: OpPrompt, Prompt: chatPrompt(`{}`)}
	a, err := j.parse([]byte(`{"token_ids":[1,2,3,4,5],"features":{"mm_hashes":{"image":["h1","h2"],"audio":["h3"]},`+
		`"mm_placeholders":{"image":[{"offset":3,"length":2},{"offset":0,"length":1}],"audio":[{"offset":1,"length":1}]},"kwargs_data":{"image":["AAAA"]}}}`), true)
	if err != nil || len(a.Media) != 3 || a.Media[0].Hash != "h2" || a.Media[1].Hash != "h3" || a.Media[2] != (Media{"image", "h1", 3, 2}) {
		t.Errorf("parse() = %+v, %v", a, err)
	}
	for _, bad := range []string{
		`{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]}}}`,
		`{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}`,
		`{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":-1,"length":1}]}}}`,
	} {
		if _, err := j.parse([]byte(bad), true); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// A connection that the engine closed while it was idle costs nothing but a new one.
func TestAConnectionClosedWhileIdleIsReplaced(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test is over
	var conns atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go answerOnce(c)
		}
	}()
	p := patient(t, DefaultConfig(), Params{})
	rs := replicas("a")
	rs[0].URL = "http://" + l.Addr().String()
	for i := range 4 {
		if _, err := ask(t, p, rs); err != nil {
			t.Errorf("question %d: %v", i, err)
		}
	}
	p.wg.Wait()
	if conns.Load() != 4 {
		t.Errorf("%d connections for 4 questions, each of which closes its own", conns.Load())
	}
}

// answerOnce answers one request, reads the next one and closes without a word.
func answerOnce(c net.Conn) {
	defer func() { _ = c.Close() }() // that is the point
	r := bufio.NewReader(c)
	for i := range 2 {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_ = req.Body.Close() // small, and the connection ends soon
		if i == 0 {
			body := `{"tokens":[1,2],"count":2}`
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 26\r\n\r\n" + body)) // the client may be gone
		}
	}
}

func TestWhoseFaultAStatusIs(t *testing.T) {
	for _, tc := range []struct {
		status int
		body   string
		want   string
	}{
		{400, `{"error":{"message":"x","code":400}}`, "client_fault"},
		{404, `{"error":{"message":"The model x does not exist.","type":"NotFoundError","code":404}}`, "client_fault"},
		{404, `{"error":{"message":"x","type":"invalid_request_error","code":"model_not_found"}}`, "client_fault"},
		{404, `{"detail":"Not Found"}`, "unsupported"},
		{404, `{"error":{"message":"Not Found","type":"NotFoundError","param":null,"code":404}}`, "unsupported"}, // of a route
		{404, ``, "unsupported"},
		{422, `{}`, "client_fault"},
		{401, `{"error":"Unauthorized"}`, "auth"}, {403, ``, "auth"},
		{405, ``, "unsupported"}, {501, ``, "unsupported"},
		{408, ``, "status"}, {429, ``, "status"}, {500, ``, "status"}, {503, `{"error":"scaling"}`, "status"},
		{302, ``, "malformed"},
	} {
		if got := kind(classify(tc.status, http.Header{}, []byte(tc.body), "x")); got != tc.want {
			t.Errorf("%d %s: %s, want %s", tc.status, tc.body, got, tc.want)
		}
	}
}

func TestRetryAfterForms(t *testing.T) {
	for v, want := range map[string]time.Duration{
		"": 0, "2": 2 * time.Second, "0.5": 500 * time.Millisecond, "-1": 0, "x": 0, "99999999": time.Hour,
		"Mon, 02 Jan 2006 15:04:05 GMT": 0,
	} {
		if got := retryAfter(v); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", v, got, want)
		}
	}
}

// Whatever a replica answers, the result is ids of the right number or a fault.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"count":2,"max_model_len":10,"tokens":[1,2],"token_strs":null}`, `{"tokens":[1,]}`, `{"tokens":[-1]}`, `{"tokens":[1.5]}`,
		`{"token_ids":[1, 2],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}`,
		`[{"token_ids":[1]}]`, `{"prompt":"x"}`, `[[`, `{"tokens":[4294967296]}`, `{"tokens":"x"}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, render bool) {
		for _, j := range []*Job{
			{Op: OpPrompt, Prompt: chatPrompt(`{}`)},
			{Op: OpPrompt, Prompt: &prompt.Prompt{Kind: prompt.KindText, Text: "x"}},
			{Op: OpDetokenize},
		} {
			a, err := j.parse(body, render)
			if err != nil {
				var fault *Fault
				if !errors.As(err, &fault) {
					t.Fatalf("%v is no fault", err)
				}
				continue
			}
			var want struct {
				Tokens []uint32 `json:"tokens"`
			}
			if j.Op == OpPrompt && !render && json.Unmarshal(body, &want) == nil && json.Valid(body) && strings.Count(string(body), `okens"`) == 1 && !reflect.DeepEqual(append([]uint32{}, a.IDs[0]...), append([]uint32{}, want.Tokens...)) {
				t.Fatalf("%s: ids are %v, want %v", body, a.IDs[0], want.Tokens)
			}
		}
	})
}
