package hostile

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/test/stack"
)

// listener is a replica that keeps what it was sent, and says what it should not.
type listener struct {
	mu     sync.Mutex
	path   string      // guarded by mu
	query  string      // guarded by mu
	header http.Header // guarded by mu
	body   string      // guarded by mu
	count  int         // guarded by mu
}

func startListener(t *testing.T) (l *listener, url string) {
	t.Helper()
	l = &listener{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // the router may be gone
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/health":
			return
		case "/version":
			io.WriteString(w, `{"version":"0.32.0"}`)
			return
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model","max_model_len":131072}]}`)
			return
		}
		if r.Method != http.MethodPost || strings.HasSuffix(r.URL.Path, "tokenize") || strings.HasSuffix(r.URL.Path, "render") {
			http.NotFound(w, r)
			return
		}
		l.mu.Lock()
		l.path, l.query, l.header, l.body, l.count = r.URL.Path, r.URL.RawQuery, r.Header.Clone(), string(body), l.count+1
		l.mu.Unlock()
		for name, value := range map[string]string{
			"Retry-After": "99999999999", "Location": "http://10.0.0.1/", "Set-Cookie": "a=b", "Via": "1.1 engine", "WWW-Authenticate": "Basic", "Alt-Svc": "h3=\":1\"",
			"Server-Timing": "a", "X-Accel-Redirect": "/etc/passwd", "X-Sendfile": "/etc/passwd", "Cache-Control": "public", "X-Engine": "x", "Openai-Version": "1",
		} {
			w.Header().Set(name, value)
		}
		io.WriteString(w, `{"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}))
	t.Cleanup(s.Close)
	return l, s.URL
}

func (l *listener) last() (path, query, body string, header http.Header, count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path, l.query, l.body, l.header, l.count
}

func wordsStack(t *testing.T) (*listener, *stack.Stack) {
	t.Helper()
	l, url := startListener(t)
	return l, stack.Start(t, stack.Options{Existing: []string{url}, Configure: func(c *config.Config) {
		c.Router.UnknownRoutes = true
		addTenants(c, "plain")
		c.API.Keys = append(c.API.Keys, callers.Key{Name: "pd", Key: secret.New("key-of-pd-"), Roles: []string{"infer", "steer"}},
			callers.Key{Name: "fwd", Key: secret.New("key-of-fwd-"), Roles: []string{"infer", "forward"}})
	}})
}

const (
	steeringBody = `"kv_transfer\u005fparams":{"do_remote_prefill":true,"remote_bootstrap_addr":"http://10.9.9.9"},"model":"sim","prompt":"hi","input":"hi","token_ids":[1],"max_tokens":2,` +
		`"messages":[{"role":"user","content":"hi"}],"vllm_xargs":{"ec_transfer_params":"10.9.9.9","session_id":"s"},"sampling_params":{"extra_args":{"kv_transfer_params":{"remote_host":"10.9.9.9"}}},` +
		`"kv_transfer_params":{"remote_host":"10.9.9.9"},"ec_transfer_params":{"a":"10.9.9.9"}`
	steeringID = "___prefill_addr_10.9.9.9:1___decode_addr_10.9.9.9:2_0123456789abcdef0123456789abcdef"
)

// Over REST and gRPC, on each route: no address that a caller names reaches an engine, unless the caller may steer.
func TestNoAddressOfACallerReachesAnEngine(t *testing.T) {
	l, s := wordsStack(t)
	for _, path := range []string{
		"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate", "/v1/chat/completions/batch", "/v1/embeddings", "/v9/unknown",
	} {
		for _, mark := range []string{"", "\xef\xbb\xbf"} {
			tenant := "plain"
			if path == "/v9/unknown" {
				tenant = "fwd"
			}
			resp, text := asWith(t, s, tenant, path, mark+"{"+steeringBody+"}", "X-Request-Id", steeringID, "X-Data-Parallel-Rank", "3", "X-Original-Url", "/10.9.9.9",
				"X-Rewrite-Url", "/10.9.9.9", "X-HTTP-Method-Override", "DELETE-10.9.9.9", "X-Accel-Internal", "10.9.9.9", "X_Forwarded_Host", "10.9.9.9", "Connection", "X-Hop", "X-Hop", "10.9.9.9")
			at, _, body, header, _ := l.last()
			if resp.StatusCode != http.StatusOK || at != path {
				t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
			}
			if strings.Contains(body, "10.9.9.9") || !strings.Contains(body, `"session_id":"s"`) || !strings.HasPrefix(body, mark+"{") {
				t.Errorf("%s: the engine got %s", path, body)
			}
			for name, values := range header {
				if strings.Contains(strings.Join(values, " "), "10.9.9.9") || name == "X-Data-Parallel-Rank" {
					t.Errorf("%s: the engine got %s: %q", path, name, values)
				}
			}
			if header.Get("X-Request-Id") == "" || resp.Header.Get("X-Request-Id") != steeringID {
				t.Errorf("%s: the engine's id is %q, the client's %q", path, header.Get("X-Request-Id"), resp.Header.Get("X-Request-Id"))
			}
			if got := resp.Header.Get("X-Kvpilot-Dropped"); got != "kv_transfer_params, ec_transfer_params, request_id" {
				t.Errorf("%s: dropped %q", path, got)
			}
			for _, name := range []string{"Retry-After", "Location", "Set-Cookie", "Via", "WWW-Authenticate", "Alt-Svc", "Server-Timing", "X-Accel-Redirect", "X-Sendfile", "Cache-Control", "X-Engine"} {
				if got := resp.Header.Get(name); got != "" {
					t.Errorf("%s: the client got %s: %s", path, name, got)
				}
			}
			if resp.Header.Get("Openai-Version") != "1" {
				t.Errorf("%s: the client got %v", path, resp.Header)
			}
		}
	}
	if resp, text := asWith(t, s, "pd", "/v1/completions", "{"+steeringBody+"}", "X-Request-Id", steeringID, "X-Data-Parallel-Rank", "3"); resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if _, _, body, header, _ := l.last(); body != "{"+steeringBody+"}" || header.Get("X-Request-Id") != steeringID || header.Get("X-Data-Parallel-Rank") != "3" {
		t.Errorf("from a caller with the role steer, the engine got %s, %v", body, header)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "key-of-plain-", "x-request-id", steeringID, "x-original-url", "/10.9.9.9")
	stream, err := dialGRPC(t, s).Completions(ctx, &httpbody.HttpBody{Data: []byte("{" + steeringBody + "}")})
	if err == nil {
		_, err = stream.Recv()
	}
	if _, _, body, header, _ := l.last(); err != nil || strings.Contains(body, "10.9.9.9") || strings.Contains(header.Get("X-Request-Id"), "10.9.9.9") || header.Get("X-Original-Url") != "" {
		t.Errorf("over gRPC: %v, the engine got %s, %v", err, body, header)
	}
}

func asWith(t *testing.T, s *stack.Stack, tenant, path, body string, headers ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key-of-"+tenant+"-")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header[headers[i]] = []string{headers[i+1]}
	}
	client := http.Client{Timeout: 20 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}

// What HTTP/2 carries and a request line cannot is the request's fault: it reaches no replica and counts against none.
func TestTargetsThatCannotBeForwardedAreTheRequestsFault(t *testing.T) {
	l, s := wordsStack(t)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	ask := func(query string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v1/completions", strings.NewReader(`{"model":"sim","prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer key-of-plain-")
		r.Header.Set("Content-Type", "application/json")
		r.URL.RawQuery = query
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	_, _, _, _, before := l.last()
	for range 20 {
		if got := ask("a=b c"); got != http.StatusBadRequest {
			t.Fatalf("a space in the query: %d", got)
		}
	}
	if _, _, _, _, after := l.last(); after != before {
		t.Error("they reached a replica")
	}
	if got := ask("a=b%20c"); got != http.StatusOK {
		t.Errorf("an honest request gets %d", got)
	}
}
