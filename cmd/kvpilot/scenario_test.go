package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// The founding scenarios that only a whole router can show; those of one part are in its package.

func TestFailuresKeepTheirStatusAndSayWhy(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	refuse := enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: 503}}
	cases := []struct {
		name, body string
		header     []string
		faults     enginesim.Faults
		status     int
		message    string
	}{
		{"no replica may be chosen", `{"model":"sim","prompt":"x"}`, []string{"X-Kvpilot-Deny", "r0"}, enginesim.Faults{}, 503, "no replica"},
		{"a bad routing request", `{"model":"sim","prompt":"x"}`, []string{"X-Kvpilot-Policy", "nonsense"}, enginesim.Faults{}, 400, `unknown policy "nonsense"; known are [predicted-ttft `},
		{"every replica is unavailable", `{"model":"sim","prompt":"x"}`, nil, refuse, 503, "no replica"},
	}
	for _, tc := range cases {
		f.engines[0].SetFaults(tc.faults)
		a := f.post("/v1/completions", tc.body, tc.header...)
		if message, _, _, _ := a.openAIError(t); a.status != tc.status || !strings.Contains(message, tc.message) {
			t.Errorf("%s: got %d %q, want %d with %q", tc.name, a.status, message, tc.status, tc.message)
		}
	}
	f.engines[0].SetFaults(enginesim.Faults{})
	f.settled()
}

func TestTheModelNamesThePool(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) {
		c.Models = []string{fmt.Sprint("model-", i)}
		c.Adapters = []string{fmt.Sprintf("model-%d:tuned", i)}
	}})
	f.eventually("all models are there", func() bool {
		resp, err := http.Get("http://" + f.http + "/v1/models")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && bytes.Count(text, []byte(`"object":"model"`)) == 4
	})
	cases := []struct {
		path, body string
		status     int
		replica    string
	}{
		{"/v1/completions", `{"model":"model-1","prompt":"x","max_tokens":1}`, 200, "r1"},
		{"/v1/completions", `{"model":"model-0:tuned","prompt":"x","max_tokens":1}`, 200, "r0"},
		{"/v1/embeddings", `{"model":"model-1","input":"x"}`, 200, "r1"},
		{"/v1/completions", `{"model":"model-2","prompt":"x"}`, 404, ""},
		{"/v1/completions", `{"prompt":"x"}`, 400, ""},
		{"/v1/completions", `{"model":"","prompt":"x"}`, 400, ""},
		{"/v1/completions", `{"model":"mod`, 400, ""},
		{"/v1/completions", `hello`, 400, ""},
		{"/v1/completions", ``, 400, ""},
	}
	before := f.metric("kvpilot_chooser_decisions_total")
	chosen := 0
	for _, tc := range cases {
		a := f.post(tc.path, tc.body)
		if a.status != tc.status || a.header.Get("X-Kvpilot-Replica") != tc.replica {
			t.Errorf("%s: got %d from %q, want %d from %q: %s", tc.body, a.status, a.header.Get("X-Kvpilot-Replica"), tc.status, tc.replica, a.body)
		}
		if tc.replica != "" {
			chosen++
		}
	}
	if made := f.metric("kvpilot_chooser_decisions_total") - before; int(made) != chosen {
		t.Errorf("%v decisions were made, want %d: none for a request that names no pool", made, chosen)
	}
}

func TestASoleModelNeedsNoName(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	if a := f.post("/v1/completions", `{"prompt":"x","max_tokens":1}`); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestStreamedAndNotGiveTheSameText(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 200 }})
	long := `"max_tokens":1000,"min_tokens":1000,"ignore_eos":true,"temperature":0,"seed":7`
	history := `"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",` +
		`"function":{"name":"weather","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"rain"}]`
	for _, tc := range []struct{ path, body string }{
		{"/v1/chat/completions", history + "," + long},
		{"/v1/completions", `"prompt":"Once upon a time",` + long},
	} {
		whole := f.post(tc.path, `{"model":"sim",`+tc.body+`}`, "X-Session-Id", "kept")
		streamed := f.post(tc.path, `{"model":"sim","stream":true,`+tc.body+`}`, "X-Session-Id", "kept")
		text := textOf(t, whole.body)
		var pieces strings.Builder
		for _, e := range streamed.events() {
			if e != "[DONE]" {
				pieces.WriteString(textOf(t, []byte(e)))
			}
		}
		if len(text) < 1000 || text != pieces.String() {
			t.Errorf("%s: whole %d bytes, streamed %d bytes, not the same", tc.path, len(text), pieces.Len())
		}
	}
	for _, r := range f.engines[0].Requests() {
		if r.OutputTokens > 0 && r.Session != "kept" {
			t.Errorf("%s reached the engine without the client's header", r.Path)
		}
	}
}

// textOf joins the texts of an answer's choices, or of a chunk's.
func textOf(t *testing.T, body []byte) string {
	t.Helper()
	var a struct {
		Choices []struct {
			Text           string
			Message, Delta struct{ Content string }
		}
	}
	if err := json.Unmarshal(body, &a); err != nil || len(body) == 0 {
		t.Fatalf("%v: %q", err, body)
	}
	var b strings.Builder
	for _, c := range a.Choices {
		b.WriteString(c.Text + c.Message.Content + c.Delta.Content)
	}
	return b.String()
}

func TestOnlyPoliciesThatLookAtCachesTokenize(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	asked := func() int {
		n := 0
		for _, e := range f.engines {
			for _, r := range e.Requests() {
				if strings.HasSuffix(r.Path, "/render") || r.Path == "/tokenize" {
					n++
				}
			}
		}
		return n
	}
	for _, tc := range []struct {
		policy string
		asks   bool
	}{
		{"round-robin", false}, {"random", false}, {"least-requests", false},
		{"predicted-ttft", true}, {"overlap-load", true}, {"weighted-scorers", true},
	} {
		before := asked()
		cached(t, f.post("/v1/chat/completions", conversation(tc.policy, 1, ""), "X-Kvpilot-Policy", tc.policy))
		if got := asked() > before; got != tc.asks {
			t.Errorf("%s: a tokenizer was asked: %v, want %v", tc.policy, got, tc.asks)
		}
	}
	if a := f.post("/tokenize", `{"model":"sim","prompt":"hello"}`, "X-Kvpilot-Policy", "round-robin"); a.status != 200 || !strings.Contains(string(a.body), `"tokens":[`) {
		t.Errorf("who asks for tokens gets them, whatever the policy: %d %s", a.status, a.body)
	}
}

func TestSessionsStayAndSpread(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 3, engine: func(_ int, c *enginesim.Config) { c.Adapters = []string{"tuned"} }})
	at := func(session string, n int) string {
		a := f.post("/v1/chat/completions", conversation(fmt.Sprint(session, n), 1, ""), "X-Session-Id", session, "X-Kvpilot-Policy", "consistent-hash")
		cached(t, a)
		return a.header.Get("X-Kvpilot-Replica")
	}
	home := at("anna", 0)
	for n := range 9 {
		if got := at("anna", n+1); got != home {
			t.Errorf("request %d of the session went to %s, the others to %s", n+1, got, home)
		}
	}
	var homes []string
	for n := range 10 {
		homes = append(homes, at(fmt.Sprint("session-", n), 0))
	}
	slices.Sort(homes)
	if len(slices.Compact(homes)) < 2 {
		t.Error("ten sessions all went to one replica")
	}
	f.eventually("the adapter is known", func() bool {
		return f.post("/v1/completions", `{"model":"tuned","prompt":"x","max_tokens":1}`).status == 200
	})
	if a := f.post("/v1/completions", `{"model":"untuned","prompt":"x"}`); a.status != 404 {
		t.Errorf("an unknown adapter: %d, want 404", a.status)
	}
}

func TestEveryWayOutFreesTheLoad(t *testing.T) {
	t.Parallel()
	slow := func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 1 }
	endless := strings.Replace(conversation("x", 1, `,"stream":true,"ignore_eos":true`), `"max_tokens":4`, `"max_tokens":4000`, 1)
	generation := []string{"/v1/chat/completions"}
	ways := map[string]func(*testing.T, *fleet){
		"client cancel": func(t *testing.T, f *fleet) {
			ctx, cancel := context.WithCancel(t.Context())
			resp := openStream(t, ctx, f, endless)
			cancel()
			resp.Body.Close()
		},
		"connect failure": func(t *testing.T, f *fleet) {
			for _, e := range f.engines {
				e.Restart(time.Minute)
			}
			if a := f.post("/v1/chat/completions", endless); a.status < 500 {
				t.Errorf("no replica is up, and the answer is %d %s", a.status, a.body)
			}
		},
		"engine 4xx": func(t *testing.T, f *fleet) {
			if a := f.post("/v1/chat/completions", strings.Replace(endless, `"max_tokens":4000`, `"max_tokens":4000,"n":-1`, 1)); a.status != 400 {
				t.Errorf("got %d, want 400: %s", a.status, a.body)
			}
		},
		"retry on another replica": func(t *testing.T, f *fleet) {
			f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: generation}, AnswerFaults: enginesim.AnswerFaults{Status: 503}})
			for range 4 {
				cached(t, f.post("/v1/chat/completions", conversation("x", 1, ""), "X-Kvpilot-Policy", "round-robin"))
			}
			if f.metric("kvpilot_router_retries_total") == 0 {
				t.Error("nothing was tried again")
			}
		},
		"drain": func(t *testing.T, f *fleet) {
			resp := openStream(t, t.Context(), f, strings.Replace(endless, `"max_tokens":4000`, `"max_tokens":40`, 1))
			defer resp.Body.Close()
			at := resp.Header.Get("X-Kvpilot-Replica")
			if a := f.post("/kvpilot/v1/replicas/"+at+":drain", `{}`); a.status != 200 {
				t.Fatalf("drain answered %d %s", a.status, a.body)
			}
			if text, err := io.ReadAll(resp.Body); err != nil || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
				t.Errorf("the stream of a draining replica ended with %v: …%q", err, text[max(0, len(text)-100):])
			}
		},
	}
	for name, leave := range ways {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 2, engine: slow})
			leave(t, f)
			f.eventually("nothing is booked", func() bool {
				return f.metric("kvpilot_load_reservations") == 0 && f.metric("kvpilot_load_prefill_tokens") == 0 && f.metric("kvpilot_load_blocks") == 0
			})
		})
	}
}

// openStream sends a request and reads the first byte of its answer.
func openStream(t *testing.T, ctx context.Context, f *fleet, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.http+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		t.Fatalf("%d: %v", resp.StatusCode, err)
	}
	return resp
}
