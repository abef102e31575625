package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

func TestBodiesPassByteForByte(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var seen httpcall.Call
	var contentType string
	url := start(t, &services{chat: func(e *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
		seen, contentType = *e, in.GetContentType()
		return echo(e, in, out)
	}})
	for name, body := range map[string]string{
		"every byte": string(every), "not JSON": "{", "empty": "", "large": strings.Repeat("0123456789", 300_000),
	} {
		resp, got := call(t, "POST", url+"/v1/chat/completions?a=1&b=%2f", body, "Content-Type", "application/json; x=y", "X-Custom", "kept", "X-Request-Id", "mine")
		if resp.StatusCode != 200 || got != body {
			t.Errorf("%s: status %d, %d bytes back of %d", name, resp.StatusCode, len(got), len(body))
		}
		if seen.RawQuery != "a=1&b=%2f" || seen.Path != "/v1/chat/completions" || seen.Header.Get("X-Custom") != "kept" || contentType != "application/json; x=y" {
			t.Errorf("%s: the handler saw %s?%s %v %q", name, seen.Path, seen.RawQuery, seen.Header, contentType)
		}
		if resp.Header.Get("X-Request-Id") != "mine" || seen.RequestID != "mine" {
			t.Errorf("%s: request id %q, %q", name, resp.Header.Get("X-Request-Id"), seen.RequestID)
		}
	}
	for _, bad := range []string{"", "a b", strings.Repeat("x", 300), "ü"} {
		resp, _ := call(t, "POST", url+"/v1/chat/completions", "{}", "X-Request-Id", bad)
		if id := resp.Header.Get("X-Request-Id"); len(id) != 32 || id == bad {
			t.Errorf("for the id %q one was made: %q", bad, id)
		}
	}
	if resp, got := call(t, "POST", url+"/v2/rerank", "x"); resp.StatusCode != 200 || got != "x" || seen.Path != "/v2/rerank" {
		t.Errorf("an additional binding: %d %q %s", resp.StatusCode, got, seen.Path)
	}
	if resp, got := call(t, "GET", url+"/v1/responses/resp_1?stream=true", ""); resp.StatusCode != 200 || got != "resp_1" || seen.RawQuery != "stream=true" {
		t.Errorf("a route with a variable: %d %q %q", resp.StatusCode, got, seen.RawQuery)
	}
	for _, path := range []string{"/v1/models/Qwen/Qwen2.5-7B", "/v1/models/Qwen%2FQwen2.5-7B"} {
		if resp, got := call(t, "GET", url+path, ""); resp.StatusCode != 200 || got != `{"id":"Qwen/Qwen2.5-7B"}` || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %q", path, resp.StatusCode, got)
		}
	}
}

func TestStatusAndHeadersAreTheHandlers(t *testing.T) {
	url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
		err := e.Answer.Begin(207, http.Header{
			"Content-Type": {"application/json; charset=utf-8"}, "Content-Length": {"4"}, "X-Kvpilot-Replica": {"r-1"},
			"Connection": {"close"}, "Transfer-Encoding": {"chunked"}, "Keep-Alive": {"timeout=5"},
		})
		if err != nil {
			return err
		}
		return out.Send(&httpbody.HttpBody{Data: []byte("null")})
	}})
	resp, got := call(t, "POST", url+"/v1/chat/completions", "{}")
	if resp.StatusCode != 207 || got != "null" || resp.ContentLength != 4 || resp.Header.Get("Content-Type") != "application/json; charset=utf-8" || resp.Header.Get("X-Kvpilot-Replica") != "r-1" {
		t.Errorf("answer %d %q, length %d, %v", resp.StatusCode, got, resp.ContentLength, resp.Header)
	}
	if resp.Close || resp.Header.Get("Keep-Alive") != "" {
		t.Errorf("hop-by-hop headers came through: %v", resp.Header)
	}
}

func TestStreamedPiecesArriveAsTheyAreSent(t *testing.T) {
	next := make(chan string)
	url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
		if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
			return err
		}
		var m httpbody.HttpBody
		buf := make([]byte, 64)
		for piece := range next {
			m.Data = buf[:copy(buf, piece)]
			if err := out.Send(&m); err != nil {
				return err
			}
		}
		return nil
	}})
	go func() { next <- "data: 0\n\n" }()
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	buf := make([]byte, 64)
	for i := range 5 {
		if i > 0 {
			next <- "data: " + string('0'+rune(i)) + "\n\n" // only after the piece before was read
		}
		n, err := resp.Body.Read(buf)
		if want := "data: " + string('0'+rune(i)) + "\n\n"; err != nil || string(buf[:n]) != want {
			t.Fatalf("piece %d: %q, %v", i, buf[:n], err)
		}
	}
	close(next)
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Errorf("after the last piece: %q, %v", rest, err)
	}
}

func TestOptionsNamesTheMethods(t *testing.T) {
	url := start(t, &services{chat: echo})
	for path, want := range map[string]string{
		"/v1/chat/completions": "POST, OPTIONS", "/v1/models": "GET, HEAD, OPTIONS", "/v1/models/a/b": "GET, HEAD, OPTIONS",
		"/v1/responses/r": "GET, HEAD, OPTIONS", "/v1/responses/r/cancel": "POST, OPTIONS", "/kvpilot/v1/replicas/r": "DELETE, GET, HEAD, OPTIONS",
	} {
		if resp, _ := call(t, "OPTIONS", url+path, ""); resp.StatusCode != 204 || resp.Header.Get("Allow") != want {
			t.Errorf("%s: %d, Allow %q, want %q", path, resp.StatusCode, resp.Header.Get("Allow"), want)
		}
	}
	if resp, _ := call(t, "OPTIONS", url+"/nothing", ""); resp.StatusCode != 404 {
		t.Errorf("a path that is not there: %d", resp.StatusCode)
	}
}

func TestTypedRoutes(t *testing.T) {
	var got *kvpilotv1.ChooseReplicaRequest
	url := start(t, &services{choose: func(in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		got = in
		return &kvpilotv1.ChooseReplicaResponse{Host: "h", Port: 1, ReplicaId: "a/b"}, nil
	}})
	resp, text := call(t, "POST", url+"/kvpilot/v1/choose", `{"model":"m","token_ids":{"ids":[1,2,3]},"sessionId":"s"}`, "Content-Type", "application/json")
	if resp.StatusCode != 200 || !slices.Equal(got.GetTokenIds().GetIds(), []uint32{1, 2, 3}) || got.GetSessionId() != "s" {
		t.Errorf("%d %s; the service saw %v", resp.StatusCode, text, got)
	}
	if !strings.HasPrefix(text, `{"host":"h","port":1,"replica_id":"a/b","rank":0,`) {
		t.Errorf("a small script cannot read %s", text)
	}
	for _, path := range []string{"/v1/route:choose", "/v1/route/choose"} {
		resp, text := call(t, "POST", url+path, `{"mess`, "X-Body-Truncated", "6/9000", "Content-Type", "application/x-www-form-urlencoded")
		if resp.StatusCode != 200 || !strings.Contains(text, `"replica_id":"r-1"`) || !strings.Contains(text, `"policy":"{\"mess6/9000"`) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
		if _, text = call(t, "GET", url+path, "", "X-Kvpilot-Path", "/v1/messages"); !strings.HasPrefix(text, `{"type":"error","error":{"type":"invalid_request_error",`) {
			t.Errorf("%s, for a client of Anthropic's API: %s", path, text)
		}
	}
	resp, text = call(t, "GET", url+"/kvpilot/v1/decisions:watch", "")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if resp.Header.Get("Content-Type") != "application/x-ndjson" || len(lines) != 3 || !strings.Contains(lines[1], `"lost":"1"`) || !strings.Contains(lines[2], "shutting_down") {
		t.Errorf("a stream of messages: %s %q", resp.Header.Get("Content-Type"), lines)
	}
}

func TestAStreamWithNothingToSayIsOpen(t *testing.T) {
	url := start(t, &services{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", url+"/kvpilot/v1/replicas:watch", nil)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("the client is not told that its stream is open: %v", err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson" || resp.Header.Get("X-Kvpilot-Stream") != "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// TestEveryRouteIsDescribed keeps /openapi.json true: what is in the contract is in there.
func TestEveryRouteIsDescribed(t *testing.T) {
	url := start(t, &services{})
	_, text := call(t, "GET", url+"/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody *struct {
				Content map[string]struct {
					Schema map[string]any
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		if strings.HasSuffix(path, "replicas:watch") {
			continue // it lasts; the test above has it
		}
		for method, op := range item {
			resp, body := call(t, strings.ToUpper(method), url+strings.NewReplacer("{", "", "}", "").Replace(path), "")
			if code := resp.StatusCode; code == 404 && strings.Contains(body, "route_not_found") || code == 405 {
				t.Errorf("%s %s is described, and answered with %d", method, path, code)
			}
			if op.RequestBody == nil {
				continue
			}
			for _, content := range op.RequestBody.Content {
				if members, _ := content.Schema["properties"].(map[string]any); members["data"] != nil && members["content_type"] != nil {
					t.Errorf("%s %s is described as an HttpBody", method, path)
				}
			}
		}
	}
	if len(doc.Paths) < 45 {
		t.Errorf("%d paths", len(doc.Paths))
	}
}

func TestBothDirectionsStream(t *testing.T) {
	url := start(t, &services{})
	in, w := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/kvpilot/v1/reservations:track", in)
	req.Header.Set("Content-Type", "application/x-ndjson")
	go func() { _, _ = io.WriteString(w, "{\"sequence\":1}\n") }()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := json.NewDecoder(resp.Body)
	for i := 1; i <= 3; i++ {
		var line struct{ Sequence string }
		if err := lines.Decode(&line); err != nil || line.Sequence != string('0'+rune(i)) {
			t.Fatalf("answer %d: %+v, %v", i, line, err)
		}
		if _, err := io.WriteString(w, "{\"sequence\":"+string('1'+rune(i))+"}\n"); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || len(bytes.TrimSpace(rest)) == 0 {
		t.Errorf("the end: %q, %v", rest, err)
	}
}

func TestAuthorizationComesBeforeTheBody(t *testing.T) {
	var tenant string
	url := start(t, &services{chat: func(e *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
		tenant = e.Caller.Tenant
		return echo(e, in, out)
	}}, func(_ *gateway.Config, p *gateway.Params) {
		p.Senders = senders(func(r *http.Request, id, rpc string) (*caller.Caller, error) {
			if id == "" || rpc != "/kvpilot.v1.InferenceService/ChatCompletions" {
				t.Errorf("request %q for %q", id, rpc)
			}
			if r.Header.Get("Authorization") == "Bearer k" {
				return &caller.Caller{Tenant: "team"}, nil
			}
			return nil, apierror.New(apierror.Unauthenticated, "a key is needed", nil)
		})
	})
	in, w := io.Pipe() // a body that never comes
	defer func() { _ = w.Close() }()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", in)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 401 || resp.Header.Get("Www-Authenticate") != "Bearer" {
		t.Errorf("without a key: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := call(t, "POST", url+"/v1/chat/completions", "{}", "Authorization", "Bearer k"); resp.StatusCode != 200 || tenant != "team" {
		t.Errorf("with a key: %d, tenant %q", resp.StatusCode, tenant)
	}
	if resp, text := call(t, "GET", url+"/openapi.json", ""); resp.StatusCode != 200 || !json.Valid([]byte(text)) {
		t.Errorf("/openapi.json: %d", resp.StatusCode)
	}
}

func TestHealthIsAskedAsOfAnEngine(t *testing.T) {
	serve := func(down error) string {
		return start(t, &services{chat: echo}, func(_ *gateway.Config, p *gateway.Params) {
			p.Health = health(func() error { return down })
			p.Senders = senders(func(*http.Request, string, string) (*caller.Caller, error) { return nil, errors.New("no key") })
		})
	}
	cases := []struct {
		method, path string
		down         error
		status       int
		text         string
	}{
		{"GET", "/health", nil, 200, ""},
		{"HEAD", "/health", nil, 200, ""},
		{"GET", "/ping", nil, 200, ""},
		{"POST", "/ping", nil, 200, ""},
		{"GET", "/health", errors.New("no replica is ready"), 503, "no replica is ready"},
		{"HEAD", "/health", errors.New("no replica is ready"), 503, ""},
	}
	for _, tc := range cases {
		resp, text := call(t, tc.method, serve(tc.down)+tc.path, "")
		if resp.StatusCode != tc.status || !strings.Contains(text, tc.text) || tc.text == "" && text != "" {
			t.Errorf("%s %s, %v: got %d %q, want %d %q", tc.method, tc.path, tc.down, resp.StatusCode, text, tc.status, tc.text)
		}
	}
	if resp, _ := call(t, "POST", serve(nil)+"/health", ""); resp.StatusCode == 200 {
		t.Error("POST /health is no question after health")
	}
}

func TestForward(t *testing.T) {
	url := start(t, &services{chat: echo}, func(_ *gateway.Config, p *gateway.Params) { p.Forward = true })
	if resp, got := call(t, "POST", url+"/v1/new/route?x=1", "{}"); resp.StatusCode != 200 || got != "POST /v1/new/route?x=1 {}" {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	if resp, _ := call(t, "GET", url+"/v1/chat/completions", ""); resp.StatusCode != 405 {
		t.Errorf("a known path with another method: %d", resp.StatusCode)
	}
}

func TestCORS(t *testing.T) {
	url := start(t, &services{chat: echo}, func(c *gateway.Config, _ *gateway.Params) { c.AllowOrigins = []string{"https://a.example"} })
	preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-a"}
	resp, _ := call(t, "OPTIONS", url+"/v1/chat/completions", "", append(preflight, "Origin", "https://a.example")...)
	if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "https://a.example" || resp.Header.Get("Access-Control-Allow-Headers") != "x-a" {
		t.Errorf("preflight: %d %v", resp.StatusCode, resp.Header)
	}
	resp, _ = call(t, "OPTIONS", url+"/v1/chat/completions", "", append(preflight, "Origin", "https://evil.example")...)
	if resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Allow") != "POST, OPTIONS" {
		t.Errorf("another origin: %d %v", resp.StatusCode, resp.Header)
	}
}

func TestClientGoneCancelsTheCall(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	url := start(t, &services{chat: func(_ *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
		close(began)
		<-out.Context().Done()
		close(ended)
		return out.Context().Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader("{}"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			t.Error("an answer to a request that was given up")
		}
	})
	<-began
	cancel()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the handler did not learn of it")
	}
	wg.Wait()
}
