package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTheRootSaysWhatTheSurfaceIs(t *testing.T) {
	browser := "text/html,application/xhtml+xml"
	for name, c := range map[string]struct {
		console bool
		accept  string
		status  int
	}{
		"a program":                     {true, "*/*", http.StatusOK},
		"a browser":                     {true, browser, http.StatusFound},
		"a browser without the console": {false, browser, http.StatusOK},
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		Handler(Config{Console: c.console}, Params{Metrics: http.NotFoundHandler(), RPCs: http.NotFoundHandler()}).ServeHTTP(w, req)
		if w.Code != c.status {
			t.Errorf("%s: %d, want %d", name, w.Code, c.status)
		}
		if c.status == http.StatusFound {
			if to := w.Header().Get("Location"); to != "/console/" {
				t.Errorf("%s is sent to %q", name, to)
			}
			continue
		}
		var about struct{ Service, Surface, Docs string }
		if err := json.Unmarshal(w.Body.Bytes(), &about); err != nil || about.Service != "kvpilot" || about.Surface != "admin" || !strings.Contains(about.Docs, "/docs/") {
			t.Errorf("%s: %v %s", name, err, w.Body)
		}
	}
}

func TestRequestsForModelsAreSentToTheRESTAddress(t *testing.T) {
	h := Handler(DefaultConfig(), Params{Metrics: http.NotFoundHandler(), RPCs: http.NotFoundHandler()})
	for _, target := range []string{"POST /v1/chat/completions", "GET /v1/models"} {
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		var body struct {
			Error struct{ Message, Code string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != http.StatusNotFound || body.Error.Code != "route_not_found" || !strings.Contains(body.Error.Message, "listen.http") {
			t.Errorf("%s: %d %s: %v", target, w.Code, w.Body, err)
		}
	}
}
