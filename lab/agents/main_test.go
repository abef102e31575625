package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// An agent's prompts begin with those before, and what engines report of them becomes the result.
func TestAnAgentsCalls(t *testing.T) {
	var before []int
	calls, refused := 0, false
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt []int `json:"prompt"`
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
		if last := r.Header.Get("X-Kvpilot-Session-Final") != ""; r.Header.Get("X-Session-Id") != "s" || last != (calls == callsOfAgent) {
			t.Errorf("call %d: headers %v", calls, r.Header)
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n", len(body.Prompt), len(before))
		before = body.Prompt
	}))
	defer engine.Close()
	r := &result{}
	a := &agent{client: engine.Client(), url: engine.URL, answer: 1, dice: rand.New(rand.NewPCG(1, 1)), into: r}
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
	(&agent{client: http.DefaultClient, url: "http://127.0.0.1:1", dice: rand.New(rand.NewPCG(1, 1)), into: r}).program(ctx, "s")
	if got := r.row(3, time.Minute); got != "| 3 | 0 | – | 0 | – | 0 |" {
		t.Error(got)
	}
}
