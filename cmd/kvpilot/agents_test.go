package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A target that no replica can meet is refused before any replica has the request, in the format of the API that was called.
func TestATargetOutOfReachIsRefusedInTheCallersFormat(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	prompt := strings.Repeat("word ", 20_000)
	began := f.asked()
	for _, tc := range []struct{ path, body, header, want string }{
		{"/v1/chat/completions", `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, "x-kvpilot-ttft-ms", `{"error":{"message":"no replica can meet`},
		{"/v1/completions", `{"model":"sim","max_tokens":4,"stream":true,"prompt":%q}`, "x-llm-d-slo-ttft-ms", `{"error":{"message":"no replica can meet`},
		{"/v1/messages", `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, "x-slo-ttft-ms", `{"type":"error","error":{"type":"rate_limit_error"`},
	} {
		body := fmt.Sprintf(tc.body, prompt)
		got := f.post(tc.path, body, tc.header, "1")
		if got.status != http.StatusTooManyRequests || !strings.HasPrefix(string(got.body), tc.want) || !strings.Contains(string(got.body), "the first token within 1ms") {
			t.Errorf("%s: %d %s", tc.path, got.status, got.body)
		}
		if got.header.Get("Retry-After") == "" || got.header.Get("X-Kvpilot-Reason") != "DEADLINE_UNREACHABLE" && tc.path != "/v1/messages" {
			t.Errorf("%s: headers %v", tc.path, got.header)
		}
		if got := f.post(tc.path, body, tc.header, "600000"); got.status != http.StatusOK {
			t.Errorf("%s within ten minutes: %d %s", tc.path, got.status, got.body)
		}
	}
	if got := f.asked() - began; got != 3 {
		t.Errorf("the engines answered %d requests, want the three with a target in reach", got)
	}
}

// asked counts the engines' generations.
func (f *fleet) asked() (n int) {
	for _, e := range f.engines {
		for _, r := range e.Requests() {
			if r.OutputTokens > 0 {
				n++
			}
		}
	}
	return n
}

// An agent's requests are one session by the header that it sends, and no other tenant's, whatever the names.
func TestAgentsSessionsStayWithTheirTenant(t *testing.T) {
	f := startFleet(t, fleetOptions{key: "key-of-a-team", yaml: "api: {keys: [{name: a, key: key-of-a-team}, {name: b, key: key-of-b-team}]}\n"})
	body := `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`
	send := func(key, path, body string, header ...string) (replica, session string) {
		t.Helper()
		got := f.post(path, body, append(header, "Authorization", "Bearer "+key)...)
		if got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.http+"/kvpilot/v1/decisions/"+got.header.Get("X-Kvpilot-Decision"), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer struct {
			Decisions []struct {
				Candidates []struct {
					ID      string `json:"replica_id"`
					Session bool   `json:"session"`
				} `json:"candidates"`
			} `json:"decisions"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Decisions) != 1 {
			t.Fatalf("decision: %v, %+v", err, answer)
		}
		for _, c := range answer.Decisions[0].Candidates {
			if c.Session {
				session = c.ID
			}
		}
		return got.header.Get("X-Kvpilot-Replica"), session
	}
	for _, header := range []string{"X-Claude-Code-Session-Id", "Session_id", "X-Session-Affinity", "X-Session-Id"} {
		name := "session by " + header
		first, before := send("key-of-a-team", "/v1/messages", body, header, name)
		if before != "" {
			t.Errorf("%s: a new session was last served by %s", header, before)
		}
		if _, last := send("key-of-b-team", "/v1/messages", body, header, name); last != "" {
			t.Errorf("%s: another tenant finds the session on %s", header, last)
		}
		if _, last := send("key-of-a-team", "/v1/messages", body, header, name); last != first {
			t.Errorf("%s: the session was last served by %q, want %q", header, last, first)
		}
	}
	keyed := `{"model":"sim","max_tokens":4,"prompt_cache_key":"conversation-1","messages":[{"role":"user","content":"hello"}]}`
	first, _ := send("key-of-a-team", "/v1/chat/completions", keyed)
	if _, last := send("key-of-a-team", "/v1/chat/completions", keyed, "X-Kvpilot-Session-Final", "true"); last != first {
		t.Errorf("prompt_cache_key: last served by %q, want %q", last, first)
	}
	if _, last := send("key-of-a-team", "/v1/chat/completions", keyed); last != "" {
		t.Errorf("a session is remembered on %s after its last request", last)
	}
}
