package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// conversation is a chat body with so many turns of about a hundred tokens each.
func conversation(name string, turns int, more string) string {
	var messages []string
	for i := range turns {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		words := strings.Repeat(fmt.Sprintf("%s turn %d says something long enough to fill blocks. ", name, i), 12)
		text, _ := json.Marshal(words)
		messages = append(messages, fmt.Sprintf(`{"role":%q,"content":%s}`, role, text))
	}
	return fmt.Sprintf(`{"model":"sim","max_tokens":4,"messages":[%s]%s}`, strings.Join(messages, ","), more)
}

type usage struct {
	Usage struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func cached(t *testing.T, a answer) usage {
	t.Helper()
	if a.err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, error %v: %s", a.status, a.err, a.body)
	}
	var u usage
	if err := json.Unmarshal(a.body, &u); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return u
}

func TestAConversationReturnsToTheReplicaThatHoldsIt(t *testing.T) {
	t.Parallel()
	// Engines so slow that a hiccup of this machine makes none look slower than a prefill costs.
	f := startFleet(t, fleetOptions{replicas: 3, engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 2 }})
	home := map[string]string{}
	for turn := 1; turn <= 7; turn += 2 {
		for _, name := range []string{"anna", "boris", "chen", "dora"} {
			a := f.post("/v1/chat/completions", conversation(name, turn, ""))
			u := cached(t, a)
			at := a.header.Get("X-Kvpilot-Replica")
			if turn == 1 {
				home[name] = at
				continue
			}
			if at != home[name] {
				t.Errorf("%s turn %d went to %s, its cache is at %s", name, turn, at, home[name])
			}
			got, predicted := u.Usage.PromptTokensDetails.CachedTokens, 0
			fmt.Sscan(a.header.Get("X-Kvpilot-Overlap-Tokens"), &predicted)
			// A conversation's known beginning is scored at once, so up to a block may be missing.
			if got == 0 || predicted > got || predicted < got-16 {
				t.Errorf("%s turn %d: predicted overlap %d, the engine found %d", name, turn, predicted, got)
			}
		}
		f.settled()
	}
}

// settled waits until the index has followed every event and nothing is booked.
func (f *fleet) settled() {
	f.t.Helper()
	f.eventually("nothing is booked", func() bool { return f.metric("kvpilot_load_reservations") == 0 })
	time.Sleep(30 * time.Millisecond) // events are published after the answer's last byte
}

func TestStreamedBytesAreTheEnginesOwn(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	body := conversation("echo", 1, `,"stream":true,"stream_options":{"include_usage":true}`)
	direct := postTo(t, f.urls[0]+"/v1/chat/completions", body, "X-Request-Id", "same")
	routed := f.post("/v1/chat/completions", body, "X-Request-Id", "same")
	if routed.status != http.StatusOK || routed.err != nil {
		t.Fatalf("status %d, error %v: %s", routed.status, routed.err, routed.body)
	}
	if got, want := scrub(t, routed), scrub(t, direct); got != want {
		t.Errorf("through the router:\n%s\ndirect:\n%s", got, want)
	}
	for name, want := range map[string]string{"Content-Type": direct.header.Get("Content-Type"), "X-Request-Id": "same"} {
		if got := routed.header.Get(name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
	if routed.header.Get("Transfer-Encoding") != "" || routed.header.Get("Server") != "" {
		t.Errorf("headers of the hop came through: %v", routed.header)
	}
}

// scrub reduces a stream to what must be equal between two answers to the same request: an engine
// may put more or fewer tokens into one event, and times and cache hits differ.
func scrub(t *testing.T, a answer) string {
	t.Helper()
	var out, content strings.Builder
	for _, e := range a.events() {
		if e == "[DONE]" {
			out.WriteString(e)
			continue
		}
		var v struct {
			ID, Object, Model string
			Choices           []struct {
				Delta        struct{ Role, Content string }
				FinishReason string `json:"finish_reason"`
			}
			Usage json.RawMessage
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatalf("%q: %v", e, err)
		}
		for _, c := range v.Choices {
			content.WriteString(c.Delta.Content)
			if c.FinishReason != "" {
				fmt.Fprintln(&out, "finish", c.FinishReason)
			}
		}
		if len(v.Usage) > 0 {
			fmt.Fprintln(&out, "usage", v.ID, v.Object, v.Model, strings.Split(string(v.Usage), `,"prompt_tokens_details"`)[0])
		}
	}
	return content.String() + "\n" + out.String()
}

func TestBadInputIsAnsweredInOpenAIsShape(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "gateway: {max_body_bytes: 20000}\n"})
	cases := map[string]struct {
		body, path string
		status     int
		param      string
		says       string
	}{
		"unknown model":    {`{"model":"nope","messages":[{"role":"user","content":"x"}]}`, "/v1/chat/completions", 404, "model", "nope"},
		"broken JSON":      {`{"model":"sim","messages":[}`, "/v1/chat/completions", 400, "", "JSON"},
		"not an object":    {`[1,2]`, "/v1/chat/completions", 400, "", ""},
		"messages a text":  {`{"model":"sim","messages":"hi"}`, "/v1/chat/completions", 400, "messages", ""},
		"model a number":   {`{"model":7,"messages":[{"role":"user","content":"x"}]}`, "/v1/chat/completions", 400, "model", ""},
		"body too large":   {`{"model":"sim","prompt":"` + strings.Repeat("x", 30000) + `"}`, "/v1/completions", 413, "", ""},
		"no such route":    {`{}`, "/v1/nothing", 404, "", ""},
		"neither of them":  {`{"model":"sim"}`, "/v1/chat/completions", 400, "messages", ""},
		"the engine's 400": {`{"model":"sim","max_tokens":-5,"messages":[{"role":"user","content":"x"}]}`, "/v1/chat/completions", 400, "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a := f.post(c.path, c.body)
			if a.status != c.status {
				t.Fatalf("status %d, want %d: %s", a.status, c.status, a.body)
			}
			message, _, param, _ := a.openAIError(t)
			if !strings.HasSuffix(param, c.param) {
				t.Errorf("param = %q, want %q: %s", param, c.param, a.body)
			}
			if !strings.Contains(message, c.says) {
				t.Errorf("message %q does not say %q", message, c.says)
			}
			if strings.Contains(string(a.body), "127.0.0.1") {
				t.Errorf("the body shows an address: %s", a.body)
			}
		})
	}
	f.settled()
}

func TestTheHeadersThatExplainAChoiceCanBeSwitched(t *testing.T) {
	switches := map[string]string{
		"replica": "X-Kvpilot-Replica", "address": "X-Kvpilot-Address", "overlap": "X-Kvpilot-Overlap-Tokens",
		"policy": "X-Kvpilot-Policy", "decision": "X-Kvpilot-Decision", "overhead": "X-Kvpilot-Overhead-Us",
	}
	for name, alone := range switches {
		var args []string
		for other := range switches {
			args = append(args, "--set", fmt.Sprintf("router.headers.%s=%v", other, other == name))
		}
		f := startFleet(t, fleetOptions{replicas: 1, noEvents: true, args: args})
		a := f.post("/v1/chat/completions", conversation("x", 1, ""))
		cached(t, a)
		if a.header.Get(alone) == "" {
			t.Errorf("%s is on and %s is missing: %v", name, alone, a.header)
		}
		for h := range a.header {
			of := h
			if of == "X-Kvpilot-Choice" { // why the policy chose so
				of = "X-Kvpilot-Policy"
			}
			if strings.HasPrefix(h, "X-Kvpilot-") && of != alone {
				t.Errorf("%s alone is on, and %s comes too", name, h)
			}
		}
		f.stop()
	}
}

func TestWithoutReplicasTheAnswerIs503WithRetryAfter(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	f.engines[0].SetFaults(enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Scaling: true}})
	f.eventually("the replica is unhealthy", func() bool {
		a := f.post("/v1/chat/completions", conversation("x", 1, ""))
		if a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "" {
			a.openAIError(t)
			return true
		}
		return false
	})
	f.settled()
}

func TestAReplicaThatFailsBeforeTheFirstByteIsReplaced(t *testing.T) {
	for name, fault := range map[string]enginesim.Faults{
		"cuts the connection": {Where: enginesim.Where{Paths: []string{"/v1/chat/completions"}}, ConnectionFaults: enginesim.ConnectionFaults{Cut: true}},
		"answers 503":         {Where: enginesim.Where{Paths: []string{"/v1/chat/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: 503}},
		"answers 429":         {Where: enginesim.Where{Paths: []string{"/v1/chat/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: 429, RetryAfter: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 2})
			f.engines[0].SetFaults(fault)
			for i := 0; i < 8 || i < 64 && f.metric("kvpilot_router_retries_total") == 0; i++ { // the first choice is by chance
				a := f.post("/v1/chat/completions", conversation(fmt.Sprint("c", i), 1, ""))
				cached(t, a)
				if at := a.header.Get("X-Kvpilot-Replica"); at != "r1" {
					t.Errorf("request %d was answered by %s", i, at)
				}
			}
			if f.metric("kvpilot_router_retries_total") == 0 {
				t.Error("no retry was counted")
			}
			f.settled()
		})
	}
}

func TestAStreamThatBreaksEndsWithAnErrorEvent(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/chat/completions"}}, StreamFaults: enginesim.StreamFaults{DieAfter: 3}})
	a := f.post("/v1/chat/completions", conversation("x", 1, `,"stream":true,"ignore_eos":true,"max_tokens":50`))
	if a.status != http.StatusOK || a.err != nil {
		t.Fatalf("status %d, error %v", a.status, a.err)
	}
	events := a.events()
	if n := len(events); n < 3 || events[n-1] != "[DONE]" || !strings.Contains(events[n-2], `"error"`) {
		t.Errorf("the stream ends with %q", events)
	}
	f.settled()
}

func TestALeavingClientFreesEverything(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 1 }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	body := conversation("x", 1, `,"stream":true,"ignore_eos":true`)
	body = strings.Replace(body, `"max_tokens":4`, `"max_tokens":5000`, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.http+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	cancel()
	resp.Body.Close()
	f.eventually("the engine aborts", func() bool {
		for _, r := range f.engines[0].Requests() {
			if r.Finish == "abort" {
				return true
			}
		}
		return false
	})
	aborted := time.Since(left)
	f.eventually("nothing is booked", func() bool { return f.metric("kvpilot_load_reservations") == 0 })
	t.Logf("engine aborted after %v, nothing booked after %v", aborted, time.Since(left))
	f.eventually("the log says 499", func() bool { return f.metric("kvpilot_router_requests_total", `status="499"`) == 1 })
}

func TestATokenizerNeverFailsARequest(t *testing.T) {
	t.Parallel()
	paths := []string{"/tokenize", "/v1/chat/completions/render", "/v1/completions/render"}
	for name, fault := range map[string]enginesim.Faults{
		"hangs":         {Where: enginesim.Where{Paths: paths}, ConnectionFaults: enginesim.ConnectionFaults{Hang: true}},
		"is cut off":    {Where: enginesim.Where{Paths: paths}, ConnectionFaults: enginesim.ConnectionFaults{Cut: true}},
		"answers 500":   {Where: enginesim.Where{Paths: paths}, AnswerFaults: enginesim.AnswerFaults{Status: 500}},
		"half a body":   {Where: enginesim.Where{Paths: paths}, ConnectionFaults: enginesim.ConnectionFaults{HalfBody: true}},
		"no JSON":       {Where: enginesim.Where{Paths: paths}, AnswerFaults: enginesim.AnswerFaults{WrongJSON: true}},
		"string codes":  {Where: enginesim.Where{Paths: paths}, AnswerFaults: enginesim.AnswerFaults{Status: 500, StringCodes: true}},
		"is overloaded": {Where: enginesim.Where{Paths: paths}, AnswerFaults: enginesim.AnswerFaults{Status: 429, RetryAfter: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "router.tokenize_timeout=300ms"}})
			for _, e := range f.engines {
				e.SetFaults(fault)
			}
			for turn := 1; turn <= 5; turn += 2 {
				cached(t, f.post("/v1/chat/completions", conversation("x", turn, "")))
			}
			f.settled()
		})
	}
}

func TestShutdownLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 2 }})
	body := strings.Replace(conversation("x", 1, `,"stream":true,"ignore_eos":true`), `"max_tokens":4`, `"max_tokens":60`, 1)
	req, err := http.NewRequest(http.MethodPost, "http://"+f.http+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stopped := make(chan struct{})
	go func() {
		f.stop()
		close(stopped)
	}()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v: …%q", err, text[max(0, len(text)-120):])
	}
	<-stopped
}

func TestARestartedReplicaHoldsNothing(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	first := f.post("/v1/chat/completions", conversation("x", 3, ""))
	cached(t, first)
	f.settled()
	at := first.header.Get("X-Kvpilot-Replica")
	f.engines[map[string]int{"r0": 0, "r1": 1}[at]].Restart(100 * time.Millisecond)
	f.eventually("the router has forgotten the former life", func() bool {
		a := f.post("/v1/chat/completions", conversation(fmt.Sprint(time.Now().UnixNano()), 1, ""))
		if a.status != http.StatusOK {
			return false
		}
		return f.metric("kvpilot_kvevents_resets_total") > 0
	})
	f.eventually("the overlap follows", func() bool {
		a := f.post("/v1/chat/completions", conversation("x", 3, ""))
		return a.status == http.StatusOK && a.header.Get("X-Kvpilot-Overlap-Tokens") == fmt.Sprint(cached(t, a).Usage.PromptTokensDetails.CachedTokens)
	})
}

func TestModelsAreAggregated(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) {
		c.Models = []string{"sim", fmt.Sprint("only-", i)}
	}})
	get := func(path string) answer {
		resp, err := http.Get("http://" + f.http + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return answer{status: resp.StatusCode, header: resp.Header, body: text}
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	f.eventually("all models are there", func() bool {
		if err := json.Unmarshal(get("/v1/models").body, &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Data) == 3
	})
	if a := get("/v1/models/only-1"); a.status != 200 || !strings.Contains(string(a.body), `"only-1"`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if a := get("/v1/models/none"); a.status != 404 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	a := f.post("/v1/completions", `{"model":"only-1","prompt":"hello there","max_tokens":3}`)
	if cached(t, a); a.header.Get("X-Kvpilot-Replica") != "r1" {
		t.Errorf("only-1 was answered by %s", a.header.Get("X-Kvpilot-Replica"))
	}
}
