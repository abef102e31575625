package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// direct serves requests without a network, so that the pauses between calls are virtual time.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// An agent's prompts begin with those before, and what engines report of them becomes the result.
func TestAnAgentsCalls(t *testing.T) { synctest.Test(t, agentsCalls) }

func agentsCalls(t *testing.T) {
	var before []int
	calls, refused := 0, false
	engine := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt []int `json:"prompt"`
			Extra  struct {
				Context struct {
					Program string `json:"program_id"`
				} `json:"agentic_context"`
			} `json:"vllm_xargs"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if !refused {
			refused = true
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		calls++
		if n := len(body.Prompt); n != calls*growth || fmt.Sprint(body.Prompt[:len(before)]) != fmt.Sprint(before) {
			t.Errorf("call %d has %d tokens, want the %d before and %d more", calls, n, len(before), growth)
		}
		if body.Extra.Context.Program != "s" {
			t.Errorf("call %d: the program is %q", calls, body.Extra.Context.Program)
		}
		if last := r.Header.Get("X-Kvpilot-Session-Final") != ""; r.Header.Get("X-Session-Id") != "s" || last != (calls == callsOfAgent) {
			t.Errorf("call %d: headers %v", calls, r.Header)
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n", len(body.Prompt), len(before))
		before = body.Prompt
	})}
	r := &result{}
	a := &agent{client: &http.Client{Transport: engine}, url: "http://engine", by: &gateway{name: "vllm-router"}, answer: 1, dice: rand.New(rand.NewPCG(1, 1)), into: r}
	a.program(t.Context(), "s")
	row := r.row(1, 10*time.Second)
	if calls != callsOfAgent || !strings.HasPrefix(row, "| 1 | 2.0 | 0.90 | 1 |") || !strings.HasSuffix(row, "| 1 |") {
		t.Errorf("%d calls, %s", calls, row)
	}
}

func TestAMeasurementWithoutAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &result{}
	(&agent{client: http.DefaultClient, url: "http://127.0.0.1:1", by: &kvpilot{}, dice: rand.New(rand.NewPCG(1, 1)), into: r}).program(ctx, "s")
	if got := r.row(3, time.Minute); got != "| 3 | 0 | – | 0 | – | 0 |" {
		t.Error(got)
	}
}

// What the routers are started with names every replica, and vllm-router's program scheduling knows the replicas' memory.
func TestTheRoutersCommands(t *testing.T) {
	o := &options{kvpilot: "kvpilot", cache: "cache", blocks: 8000, speed: 4}
	s := &setting{http: 1, grpc: 2, admin: 3, dir: t.TempDir(), replicas: []replica{{"http://a", "tcp://a:1", "tcp://a:2"}, {"http://b", "tcp://b:1", "tcp://b:2"}}}
	for name, want := range map[string][]string{
		"kvpilot":                   {"serve"},
		"vllm-router:kv_aware":      {"--kv-event-source http://b=tcp://b:1", "--kv-event-replay-source http://a=tcp://a:2", "--worker-urls http://a http://b"},
		"vllm-router:programs":      {"--enable-program-scheduling", `"token_capacity_per_target":128000`, `"linear_seconds_per_1k_tokens":0.03125`, "--worker-urls http://a http://b"},
		"sglang-router:cache_aware": {"sglang-router launch", "--policy cache_aware", "--worker-urls http://a http://b"},
	} {
		args, err := o.routers()[name].command(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if line := strings.Join(args, " "); !strings.Contains(line, part) {
				t.Errorf("%s: %q is not in %s", name, part, line)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "kvpilot.yaml"))
	if err != nil || !strings.Contains(string(text), `url: "http://b", events: {endpoint: "tcp://b:1", replay: "tcp://b:2"}`) {
		t.Errorf("%s, %v", text, err)
	}
}

// sglang-router refuses token ids.
func TestTextForRoutersWithoutTokenIDs(t *testing.T) {
	body := map[string]any{"prompt": []int{27, 28, 29}}
	(&gateway{name: "sglang-router"}).mark(body, "s")
	if got := body["prompt"]; got != " bbabc bd" {
		t.Errorf("%q", got)
	}
}

func TestCallsBeforeTheMeasurementDoNotCount(t *testing.T) {
	r := &result{from: time.Now().Add(time.Hour)}
	r.add(usage{Prompt: 10}, time.Second)
	r.finish()
	r.from = time.Now().Add(-time.Second)
	r.add(usage{Prompt: 10}, time.Second)
	r.finish()
	if got := r.row(1, time.Second); !strings.HasPrefix(got, "| 1 | 1.0 | 0.00 | 1 |") {
		t.Error(got)
	}
}
