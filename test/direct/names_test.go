package direct

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/test/pki"
	"github.com/kvpilot/kvpilot/test/stack"
)

// front stands before a replica and keeps the headers of the chats that reach it.
type front struct {
	url   string
	close func()

	mu   sync.Mutex
	seen http.Header // guarded by mu
}

func newFront(t *testing.T, replica string) *front {
	t.Helper()
	target, err := url.Parse(replica)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{}
	transport := &http.Transport{}
	behind := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/chat") {
			f.mu.Lock()
			f.seen = r.Header.Clone()
			f.mu.Unlock()
			w.Header().Set("Set-Cookie", "engine=1")
			w.Header().Set("Access-Control-Allow-Origin", "*")
		}
		behind.ServeHTTP(w, r)
	}))
	f.url = server.URL
	f.close = sync.OnceFunc(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	t.Cleanup(f.close)
	return f
}

func (f *front) header() http.Header {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// testNames speaks to a proxy as its clients do: by its name, with TLS, over HTTP/1.1 and HTTP/2, while the router listens on the
// loopback.
func testNames(t *testing.T, p proxy) {
	engine := newFront(t, startStack(t, 1).Replicas[0])
	s := stack.Start(t, stack.Options{Existing: []string{engine.url}})
	authority := pki.New(t, "test")
	cert, key := authority.Issue(pki.Cert{Names: []string{"api.example.com"}})
	at := p.start(t, proxyOptions{cert: cert, certKey: key}, s.HTTP)
	address := strings.TrimPrefix(at, "http://")
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}, ForceAttemptHTTP2: protocol == "HTTP/2.0",
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
		}
		client := &http.Client{Transport: transport, Timeout: time.Minute}
		for _, c := range []struct {
			method, path, body string
			status             int
		}{
			{"GET", "/v1/models", "", 200},
			{"GET", "/health", "", 200},
			{"GET", "/v1/models/sim", "", 200},
			{"GET", "/v1/nothing", "", 404},
			{"GET", "/v1/chat/completions", "", 405},
			{"POST", "/v1/embeddings", `{"model":"sim","input":"hi"}`, 200},
			{"POST", "/tokenize", `{"model":"sim","prompt":"hi"}`, 200},
			{"POST", "/v1/chat/completions", fmt.Sprintf(chat, "hi", false), 200},
			{"POST", "/v1/chat/completions", fmt.Sprintf(chat, "hi", true), 200},
			{"POST", "/v1/messages", fmt.Sprintf(chat, "hi", false), 200},
		} {
			resp, body := sendAs(t, client, c.method, "https://api.example.com"+c.path, c.body)
			if resp.StatusCode != c.status || resp.Proto != protocol {
				t.Errorf("%s %s over %s: got %d %s over %s, want %d", c.method, c.path, protocol, resp.StatusCode, body, resp.Proto, c.status)
			}
			if resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: the engine rules the client's browser: %v", c.path, resp.Header)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%s: the answer has no request id: %v", c.path, resp.Header)
			}
		}
		transport.CloseIdleConnections()
		secrets(t, protocol, engine.header())
	}
	ended(t, s)
}

// sendAs sends a request with credentials, and with what engines must not see.
func sendAs(t *testing.T, client *http.Client, method, url, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, name := range unseen() {
		req.Header.Set(name, "secret")
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// unseen lists headers of clients that do not reach engines.
func unseen() []string {
	return []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization", "Referer", "Forwarded", "Via", "Baggage", "X-Real-Ip", "X-Forwarded-For",
		"X-Forwarded-Host", "X-Forwarded-Proto", "X-Kvpilot-Tenant", "X-Kvpilot-Client-Credential", "X-Data-Parallel-Rank"}
}

// secrets checks what an engine has seen of a request; the front itself adds X-Forwarded-For.
func secrets(t *testing.T, protocol string, seen http.Header) {
	t.Helper()
	if seen == nil {
		t.Fatal("no chat came to the engine")
	}
	for name, values := range seen {
		if slices.Contains(values, "secret") {
			t.Errorf("over %s, the engine sees the client's %s", protocol, name)
		}
	}
}
