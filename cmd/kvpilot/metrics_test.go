package main

import (
	"bufio"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestServedMetricsAreDocumentedAndBounded(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "chooser.shadow=round-robin"}})
	for i := range 20 {
		more := ""
		if i%2 == 0 {
			more = `,"stream":true`
		}
		f.post("/v1/chat/completions", conversation(strings.Repeat("x", i), 1, more), "X-Request-Id", strings.Repeat("y", i+1), "X-Session-Id", strings.Repeat("z", i+1))
		f.post("/v1/chat/completions", `{"model":"unknown-`+strings.Repeat("m", i)+`","messages":[{"role":"user","content":"x"}]}`)
	}
	reference, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + f.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	series := map[string]int{}
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		line := s.Text()
		if !strings.HasPrefix(line, "kvpilot_") && !strings.HasPrefix(line, "gen_ai_") {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if !strings.Contains(string(reference), "`"+name+"`") {
			t.Errorf("%s is served and not in docs/metrics.md", name)
		}
		if !strings.Contains(line, "_bucket{") {
			series[name]++
		}
		for _, invented := range []string{"unknown-", "yyy", "zzz"} {
			if strings.Contains(line, invented) {
				t.Errorf("a client's text is a label: %s", line)
			}
		}
	}
	for name, n := range series {
		if n > 120 {
			t.Errorf("%s has %d series for two replicas", name, n)
		}
	}
	for _, name := range []string{"kvpilot_build_info", "kvpilot_load_reservation_age_seconds", "kvpilot_upstream_breaker_state",
		"gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds", "gen_ai_server_time_per_output_token_seconds", "gen_ai_client_token_usage"} {
		if series[name] == 0 {
			t.Errorf("%s is not served", name)
		}
	}
	for _, name := range []string{"process_resident_memory_bytes", "go_goroutines"} {
		if f.metric(name) <= 0 {
			t.Errorf("%s is not served", name)
		}
	}
	if len(series) < 60 {
		t.Errorf("only %d metrics are served", len(series))
	}
}
