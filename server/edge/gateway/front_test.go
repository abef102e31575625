package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
)

func TestAWrongBaseURLIsNamedWithTheRightPath(t *testing.T) {
	url := start(t, &services{})
	for path, want := range map[string]string{
		"POST /chat/completions":               "there is no route /chat/completions; the base URL lacks /v1: use /v1/chat/completions",
		"GET /models":                          "there is no route /models; the base URL lacks /v1: use /v1/models",
		"GET /models/org/name":                 "the base URL lacks /v1: use /v1/models/org/name",
		"POST /v1/v1/chat/completions":         "there is no route /v1/v1/chat/completions; the base URL ends in /v1 twice, or the client adds it to one that has it: use /v1/chat/completions",
		"POST /v1/v1/v1/messages":              ": use /v1/messages",
		"POST /openai/v1/chat/completions":     "the base URL has a path before /v1: use /v1/chat/completions",
		"POST /v1/chat/completion":             "there is no route /v1/chat/completion; did you mean /v1/chat/completions?",
		"POST /v1/chat/completions/unexpected": "there is no route /v1/chat/completions/unexpected\"",
		"POST /v1/v1":                          "there is no route /v1/v1\"",
		"POST /":                               "there is no route /\"",
		"GET /kvpilot/v1/state":                "did you mean /kvpilot/v1/status?",
	} {
		method, path, _ := strings.Cut(path, " ")
		resp, body := call(t, method, url+path, "{}")
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(body, `"code":"route_not_found"`) || !strings.Contains(body, want) {
			t.Errorf("%s %s: %d %s; want 404 and %q", method, path, resp.StatusCode, body, want)
		}
	}
}

func TestTheRootSaysWhatTheSurfaceIs(t *testing.T) {
	url := start(t, &services{}, func(_ *gateway.Config, p *gateway.Params) {
		p.Senders = senders(func(*http.Request, string, string) (*caller.Caller, error) {
			return nil, apierror.New(apierror.Unauthenticated, "no key", nil)
		})
	})
	resp, body := call(t, "GET", url+"/", "")
	var about struct{ Service, Surface, Docs, Openapi string }
	if err := json.Unmarshal([]byte(body), &about); err != nil || resp.StatusCode != http.StatusOK || about.Service != "kvpilot" || about.Surface != "REST" || !strings.HasSuffix(about.Docs, "/docs/api.md") || about.Openapi != "/openapi.json" {
		t.Errorf("%d %s: %v", resp.StatusCode, body, err)
	}
	if resp, body := call(t, "HEAD", url+"/", ""); resp.StatusCode != http.StatusOK || body != "" {
		t.Errorf("HEAD: %d %q", resp.StatusCode, body)
	}
	if resp, _ := call(t, "POST", url+"/", "{}"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("POST: %d", resp.StatusCode)
	}
}
