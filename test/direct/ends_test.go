package direct

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

// testEnds has replicas answer, refuse, break off and vanish, and clients leave: kvpilot must hear which it was.
func testEnds(t *testing.T, p proxy) {
	s := startStack(t, 1)
	url := p.start(t, proxyOptions{}, s.HTTP)
	for i, c := range []struct {
		name, faults string
		stream       bool
		status       int
		end          string
	}{
		{"a whole answer", `{}`, false, 200, "END_COMPLETED"},
		{"a whole stream", `{}`, true, 200, "END_COMPLETED"},
		{"a stream that breaks off", `{"die_after":3,"paths":["/v1/chat"]}`, true, 200, "END_FAILED"},
		{"half an answer", `{"half_body":true,"paths":["/v1/chat"]}`, false, 200, "END_FAILED"},
		{"no answer", `{"cut":true,"paths":["/v1/chat"]}`, true, 502, "END_FAILED"},
		{"an engine's error", `{"status":500,"paths":["/v1/chat"]}`, false, 500, "END_FAILED"},
		{"an engine that is not ready", `{"status":503,"paths":["/v1/chat"]}`, true, 503, "END_FAILED"},
		{"an engine that refuses", `{"status":429,"paths":["/v1/chat"]}`, true, 429, "END_REJECTED"},
		{"an engine that finds no fault but the client's", `{"status":400,"paths":["/v1/chat"]}`, false, 400, "END_REJECTED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			faults(t, s, c.faults)
			defer faults(t, s, `{}`)
			id := fmt.Sprintf("end-%d", i)
			body := fmt.Sprintf(chat, "hi", c.stream)
			if strings.Contains(c.faults, "die_after") {
				body = long
			}
			status, _ := exchange(t, url, body, id)
			if status != c.status {
				t.Errorf("got %d, want %d", status, c.status)
			}
			wantEnd(t, s, id, c.end)
			ended(t, s)
		})
	}
	t.Run("a client that leaves", func(t *testing.T) {
		slow(t, s, time.Hour)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		resp, err := askAs(ctx, url, "left")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		leave()
		wantEnd(t, s, "left", "END_CANCELED")
		ended(t, s)
	})
}

// wantForm checks that a proxy's own error has the form of the API that the path belongs to.
func wantForm(t *testing.T, path string, resp *http.Response, body, message, reason string) {
	t.Helper()
	var e struct {
		Type  string `json:"type"`
		Error struct {
			Type, Message, Code string
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || !strings.Contains(e.Error.Message, message) || e.Error.Type == "" {
		t.Errorf("%s: %v in %q", path, err, body)
	}
	anthropic := strings.HasPrefix(path, "/v1/messages")
	if anthropic != (e.Type == "error") || anthropic == (e.Error.Code == strings.ToLower(reason)) {
		t.Errorf("%s: the error has another API's form: %s", path, body)
	}
	if resp.Header.Get("X-Kvpilot-Reason") != reason || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s: the error has the headers %v, want the reason %s", path, resp.Header, reason)
	}
}

// wantEnd waits until the decision on a request has an end, and checks it.
func wantEnd(t *testing.T, s *stack.Stack, request, want string) {
	t.Helper()
	var end string
	waitFor(t, "the end of "+request, func() bool {
		end = endOf(t, s, request)
		return end != ""
	})
	if end != want {
		t.Errorf("%s ended as %s, want %s", request, end, want)
	}
}

func endOf(t *testing.T, s *stack.Stack, request string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.HTTP + "/kvpilot/v1/decisions")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Decisions []struct {
			RequestID string `json:"request_id"`
			Outcome   struct {
				End string `json:"end"`
			} `json:"outcome"`
		} `json:"decisions"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	for _, d := range list.Decisions {
		if d.RequestID == request {
			return d.Outcome.End
		}
	}
	return ""
}

// exchange sends a request and reads its answer, which may break off.
func exchange(t *testing.T, url, body, id string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // some break off
	return resp.StatusCode, string(text)
}

// testKeys has a client whose key may infer and no more.
func testKeys(t *testing.T, p proxy) {
	s := stack.Start(t, stack.Options{Replicas: 1, Configure: func(c *config.Config) {
		c.API.Keys = []grpcapi.Key{
			{Name: "team", Key: secret.New("team-secret"), Roles: []string{"infer"}},
			{Name: "watcher", Key: secret.New("watcher-secret"), Roles: []string{"observe"}},
			{Name: "proxy", Key: secret.New("proxy-secret"), Roles: []string{"route", "gateway"}},
		}
	}})
	url := p.start(t, proxyOptions{key: "proxy-secret"}, s.HTTP)
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"no key":                            {nil, 401},
		"an unknown key":                    {[]string{"Authorization", "Bearer nonsense"}, 401},
		"a tenant's name":                   {[]string{"X-Kvpilot-Tenant", "team"}, 401},
		"a credential for proxies":          {[]string{"X-Kvpilot-Client-Credential", "Bearer team-secret"}, 401},
		"a key without the role":            {[]string{"Authorization", "Bearer watcher-secret"}, 403},
		"a key with the role infer":         {[]string{"Authorization", "Bearer team-secret"}, 200},
		"the same, in Anthropic's header":   {[]string{"X-Api-Key", "team-secret"}, 200},
		"the same, next to another tenant":  {[]string{"X-Api-Key", "team-secret", "X-Kvpilot-Tenant", "watcher"}, 200},
		"the same, below another scheme":    {[]string{"X-Api-Key", "team-secret", "Authorization", "Basic eDp5"}, 200},
		"two keys: Authorization is looked": {[]string{"X-Api-Key", "team-secret", "Authorization", "Bearer nonsense"}, 401},
	} {
		resp, body := post(t, url+"/v1/chat/completions", fmt.Sprintf(chat, "hi", true), c.header...)
		if resp.StatusCode != c.status || c.status == 200 && !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	if resp, body := post(t, "http://"+s.HTTP+"/v1/route:choose", fmt.Sprintf(chat, "hi", true), "Authorization", "Bearer team-secret"); resp.StatusCode != 403 {
		t.Errorf("the client itself asks for a replica: %d %s", resp.StatusCode, body)
	}
	ended(t, s)
	if n := metric(t, s, "kvpilot_load_ended_total", `reason="released"`); n != 4 {
		t.Errorf("%v bookings were released, want 4", n)
	}
}
