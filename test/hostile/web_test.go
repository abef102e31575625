package hostile

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/test/stack"
)

// page makes a request as a browser does for a page of origin, and returns the answer.
func page(t *testing.T, method, address, path, host, origin, site, contentType, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		r.Host = host
	}
	for name, value := range map[string]string{"Origin": origin, "Sec-Fetch-Site": site, "Content-Type": contentType} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// Item 3: a page that somebody looks at on the router's machine changes nothing and reads nothing.
func TestWebPagesReachNothing(t *testing.T) {
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) { c.Registry.Registration.Enabled = true }})
	const evil = "https://evil.example"
	register := `{"replica_id":"evil","url":"http://127.0.0.1:1","lease":"60s"}`
	attacks, done := 0, 0
	for _, path := range []struct{ method, path, body string }{
		{"POST", "/kvpilot/v1/replicas", register},
		{"POST", "/kvpilot/v1/replicas/evil:drain", "{}"},
		{"DELETE", "/kvpilot/v1/replicas/evil", ""},
		{"POST", "/v1/chat/completions", good},
		{"POST", "/v1/route:choose", good},
		{"POST", "/kvpilot/v1/choose", `{"model":"sim","text":"a"}`},
	} {
		for _, how := range [][4]string{ // host, origin, Sec-Fetch-Site, type
			{"", evil, "cross-site", ""},
			{"", evil, "cross-site", "text/plain"},
			{"", evil, "cross-site", "application/x-www-form-urlencoded"},
			{"", evil, "", "application/json"},
			{"", "null", "", "text/plain"},
			{"", "", "same-site", "text/plain"},
			{"evil.example", "http://evil.example", "same-origin", "application/json"}, // DNS rebinding
			{"evil.example", "", "", "application/json"},
			{"", "http://" + s.HTTP, "same-origin", ""}, // the page would have to be the router's own, and send JSON
		} {
			if how[3] == "" && how[2] == "same-origin" && strings.HasPrefix(path.path, "/v1/") || path.method == "DELETE" && how[2] == "same-origin" && how[0] == "" || strings.HasSuffix(path.path, ":drain") && how[2] == "same-origin" && how[0] == "" {
				continue // engines judge the types of their bodies; a DELETE has none
			}
			attacks++
			resp := page(t, path.method, s.HTTP, path.path, how[0], how[1], how[2], how[3], path.body)
			if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnsupportedMediaType {
				done++
				t.Errorf("%s %s with %q: got %d", path.method, path.path, how, resp.StatusCode)
				continue
			}
			if resp.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s with %q: the page may read the refusal", path.method, path.path, how)
			}
			openAIError(t, resp)
		}
	}
	for _, at := range []string{s.HTTP, s.Admin} {
		for _, path := range []string{"/kvpilot/v1/replicas", "/v1/models", "/console/", "/metrics", "/debug/pprof/"} {
			attacks++
			if resp := page(t, "GET", at, path, "evil.example:80", "", "", "", ""); resp.StatusCode != http.StatusForbidden {
				done++
				t.Errorf("GET %s by a name that is not the router's: got %d", path, resp.StatusCode)
			}
		}
	}
	t.Logf("%d of %d attacks came through", done, attacks)
	for _, host := range []string{"localhost", "localhost:8080", "127.0.0.1", "[::1]:8080", "app.localhost", ""} {
		if resp := page(t, "GET", s.HTTP, "/v1/models", host, "", "", "", ""); resp.StatusCode != http.StatusOK {
			t.Errorf("Host %q: got %d", host, resp.StatusCode)
		}
	}
	alive(t, s)
}

// The console's RPCs are for its own page, whichever pages gateway.allow_origins lets call the engines.
func TestTheAdminAddressKnowsNoOtherOrigin(t *testing.T) {
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) { c.Gateway.AllowOrigins = []string{"*"} }})
	const evil = "https://evil.example"
	for _, path := range []string{"/kvpilot/v1/decisions", "/kvpilot/v1/status", "/kvpilot/v1/replicas:watch"} {
		if resp := page(t, "GET", s.Admin, path, "", evil, "cross-site", "", ""); resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: a page of another origin may read the answer", path)
		}
	}
	for _, how := range [][2]string{{"cross-site", "application/json"}, {"", "application/json"}, {"cross-site", "text/plain"}} {
		if resp := page(t, "POST", s.Admin, "/kvpilot/v1/choose", "", evil, how[0], how[1], `{"text":"a","booking":"BOOKING_DRY_RUN"}`); resp.StatusCode != http.StatusForbidden {
			t.Errorf("a dry run by a page of another origin, %q: %d", how, resp.StatusCode)
		}
	}
	if resp := page(t, "OPTIONS", s.Admin, "/kvpilot/v1/choose", "", evil, "cross-site", "", ""); resp.StatusCode < 400 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight: %d %v", resp.StatusCode, resp.Header)
	}
	if resp := page(t, "POST", s.Admin, "/kvpilot/v1/choose", "", "http://"+s.Admin, "same-origin", "application/json", `{"text":"a","booking":"BOOKING_DRY_RUN"}`); resp.StatusCode != http.StatusOK {
		t.Errorf("the console's own dry run: %d", resp.StatusCode)
	}
}

// Item 3: without keys, nobody registers a replica unless the operator allows it.
func TestRegistrationIsOffByDefault(t *testing.T) {
	s := stack.Start(t, stack.Options{})
	resp := page(t, "POST", s.HTTP, "/kvpilot/v1/replicas", "", "", "", "application/json", `{"replica_id":"a","url":"http://127.0.0.1:1"}`)
	message, _ := openAIError(t, resp)
	if resp.StatusCode != http.StatusForbidden || !strings.Contains(message, "registry.registration.enabled") {
		t.Errorf("got %d %q", resp.StatusCode, message)
	}
}

// Items 3 and 7: engines do not hear what only concerns the router, and do not speak to browsers.
func TestWhatEnginesAndBrowsersSayToEachOtherEndsHere(t *testing.T) {
	var heard http.Header
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"sim"}]}`)
		case "/v1/chat/completions":
			heard = r.Header.Clone()
			for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Strict-Transport-Security", "Content-Security-Policy", "Clear-Site-Data", "Refresh"} {
				w.Header().Set(name, "*")
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"id":"x","choices":[]}`)
		case "/health", "/version":
		default:
			http.NotFound(w, r)
		}
	}))
	defer replica.Close()
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.Registry.Replicas = []registry.Spec{{URL: replica.URL}}
		c.Gateway.AllowOrigins = []string{"https://chat.example"}
	}})
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.HTTP+"/v1/chat/completions", strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	claimed := []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-Ip", "Baggage", "Referer", "Sec-Fetch-Mode"}
	for _, name := range claimed {
		r.Header.Set(name, "198.51.100.7")
	}
	r.Header.Set("Origin", "https://chat.example")
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d", resp.StatusCode)
	}
	for _, name := range append(claimed, "Origin") {
		for _, value := range heard.Values(name) {
			if strings.Contains(value, "198.51.100.7") || strings.Contains(value, "chat.example") {
				t.Errorf("the replica heard %s: %s", name, value)
			}
		}
	}
	if got := heard.Get("X-Forwarded-For"); got != "127.0.0.1" {
		t.Errorf("the replica heard X-Forwarded-For: %q, want the client's address as the router sees it", got)
	}
	for _, name := range []string{"Access-Control-Allow-Credentials", "Strict-Transport-Security", "Content-Security-Policy", "Clear-Site-Data", "Refresh"} {
		if got := resp.Header.Get(name); got != "" {
			t.Errorf("the engine's %s: %s passes", name, got)
		}
	}
	if got := resp.Header.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != "https://chat.example" {
		t.Errorf("Access-Control-Allow-Origin: %q", got)
	}
}

// Item 7: the route that was found is the one that is forwarded.
func TestEncodedPathsAreForwardedAsTheirRoute(t *testing.T) {
	var asked string
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"sim"}]}`)
		case "/health", "/version":
		default:
			if r.Method == http.MethodPost {
				asked = r.RequestURI
			}
			io.WriteString(w, `{"id":"x","choices":[]}`)
		}
	}))
	defer replica.Close()
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.Registry.Replicas = []registry.Spec{{URL: replica.URL}}
		c.Tokenizer.Enabled = false
		c.Router.UnknownRoutes = true
	}})
	for path, want := range map[string]string{
		"/v1/chat%2fcompletions":       "/v1/chat/completions",
		"/%76%31/chat/completions":     "/v1/chat/completions",
		"/v1/chat/completions/":        "/v1/chat/completions",
		"/v1/other%2f..%2fcompletions": "",
		"/v1/other/%2e%2e/completions": "",
		"/v1/other%5ccompletions":      "",
		"/v1/responses/a%2f..%2fb":     "",
	} {
		asked = ""
		u := &url.URL{Scheme: "http", Host: s.HTTP, Opaque: path}
		resp, err := http.DefaultTransport.RoundTrip(&http.Request{Method: "POST", URL: u, Host: "localhost", Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(good)), ContentLength: int64(len(good))})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if asked != want || want == "" && resp.StatusCode < 400 {
			t.Errorf("%s: the replica was asked for %q (status %d), want %q", path, asked, resp.StatusCode, want)
		}
	}
}

// Item 7: the second of two headers counts as well as the first.
func TestTwoContentEncodings(t *testing.T) {
	s := start(t)
	wire := post(good, "Content-Encoding: identity\r\n", "Content-Encoding: gzip\r\n")
	if code, answer := exchange(t, s.HTTP, wire); code != http.StatusUnsupportedMediaType {
		t.Errorf("got %d %.200s", code, answer)
	}
}
