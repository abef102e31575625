package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/test/programs"
)

// waitForText polls the output for a pattern and gives its first group.
func waitForText(t *testing.T, o *programs.Log, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m := re.FindStringSubmatch(o.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("%s did not come; there is:\n%s", pattern, o)
	return ""
}

func TestDemoShowsKVAwareAhead(t *testing.T) {
	var out programs.Log
	err := run(t.Context(), []string{"demo", "--conversations", "16", "--turns", "4", "--concurrency", "8", "--speed", "30"}, nil, &out, io.Discard)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	share := func(title string) float64 {
		m := regexp.MustCompile(`(?m)^` + title + ` .* ([0-9.]+) %`).FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("no row %q in:\n%s", title, &out)
		}
		f, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if rr, kv := share("round robin"), share("KV-aware"); kv <= rr {
		t.Errorf("cached share: KV-aware %.1f %%, round robin %.1f %%\n%s", kv, rr, &out)
	}
	if !strings.Contains(out.String(), "sim-0 16, sim-1 16, sim-2 16, sim-3 16") {
		t.Errorf("round robin was uneven:\n%s", &out)
	}
}

func TestDemoServesUntilItIsStopped(t *testing.T) {
	var out programs.Log
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"demo", "--serve", "--conversations", "2", "--turns", "1", "--concurrency", "2", "--speed", "50"}, nil, &out, io.Discard)
	}()
	base := waitForText(t, &out, `curl -N (http://\S+)/v1/chat`)
	resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"Hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"chat.completion"`)) {
		t.Errorf("%d %s %v", resp.StatusCode, body, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestSimServesWhatItPrints(t *testing.T) {
	var out programs.Log
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"sim", "--port", "0", "--events-port", "0", "--replay-port", "0", "--count", "2", "--version", "0.12.0", "--faults", `{"status":503,"times":1}`}, nil, &out, io.Discard)
	}()
	base := waitForText(t, &out, `(http://\S+)  model sim, as vLLM 0.12.0, events tcp`)
	var codes []int
	for range 2 {
		resp, err := http.Get(base + "/version")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		codes = append(codes, resp.StatusCode)
	}
	if codes[0] != 503 || codes[1] != 200 {
		t.Errorf("answers %v, want the fault once", codes)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
	if err := run(t.Context(), []string{"sim", "--faults", `{"nonsense":1}`}, nil, io.Discard, io.Discard); err == nil {
		t.Error("an unknown fault was accepted")
	}
}

func TestDemoRunsAFleetOfRouters(t *testing.T) {
	var out programs.Log
	err := run(t.Context(), []string{"demo", "--routers", "3", "--conversations", "9", "--turns", "3", "--concurrency", "3", "--speed", "30"}, nil, &out, io.Discard)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "decides for model sim"); n != 1 {
		t.Errorf("%d routers decide, want one:\n%s", n, &out)
	}
	if n := len(regexp.MustCompile(`(?m)^router-\d asked for [1-9]`).FindAllString(out.String(), -1)); n != 2 {
		t.Errorf("%d routers asked another one, want two:\n%s", n, &out)
	}
	if err := run(t.Context(), []string{"demo", "--routers", "0"}, nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "--routers") {
		t.Errorf("--routers 0: %v", err)
	}
}
