package direct

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// dyingRouter takes one question with its whole body and ends without an answer, as a router does that is killed just then: its port
// refuses connections from then on.
type dyingRouter struct {
	address string
	mu      sync.Mutex
	taken   []string // bodies, guarded by mu
}

func startDyingRouter(t *testing.T) *dyingRouter {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dyingRouter{address: l.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			ended := context.AfterFunc(t.Context(), func() { conn.Close() })
			if body, asked := question(conn); asked {
				l.Close() // before the connection: whoever sees that end finds nothing here
				d.mu.Lock()
				d.taken = append(d.taken, body)
				d.mu.Unlock()
			}
			ended()
			conn.Close()
		}
	})
	return d
}

// question reads a whole request for a choice; asked is false when another one comes.
func question(conn net.Conn) (body string, asked bool) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil || !strings.HasSuffix(req.URL.Path, "route:choose") {
		return "", false
	}
	text, err := io.ReadAll(req.Body)
	return string(text), err == nil
}

// startAnsweringRouter starts a stand-in of a router that always chooses the same replica.
func startAnsweringRouter(t *testing.T, replica string) (address string, bodies func() []string) {
	t.Helper()
	host, port, err := net.SplitHostPort(replica)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var list []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "route:choose") {
			fmt.Fprint(w, "{}") // the release
			return
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		list = append(list, string(text))
		mu.Unlock()
		fmt.Fprintf(w, `{"host":%q,"port":%s,"replica_id":"a","reservation_id":"r","request_headers":{"x-request-id":"q"}}`, host, port)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), func() []string { mu.Lock(); defer mu.Unlock(); return append([]string(nil), list...) }
}

// A router that dies with a question in hand costs no request: the next one gets the same question.
func TestNginxAsksAgainWhenARouterDiesWithTheQuestion(t *testing.T) {
	binary(t)
	nginx{}.program(t)
	for _, tt := range []struct {
		name string
		size int
	}{
		{"a body of one packet", 40},
		{"a body of many packets", 200 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const answer = `{"object":"text_completion"}`
			replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // it is another part's business
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, answer)
			}))
			t.Cleanup(replica.Close)
			dying := startDyingRouter(t)
			good, asked := startAnsweringRouter(t, replica.Listener.Addr().String())
			url := nginx{}.start(t, proxyOptions{}, dying.address, good) // its first question goes to the first router
			body, err := json.Marshal(map[string]string{"model": "sim", "prompt": strings.Repeat("x", tt.size)})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if resp, text := post(t, url+"/v1/completions", string(body)); resp.StatusCode != http.StatusOK || text != answer {
					t.Errorf("status %d: %s", resp.StatusCode, text)
				}
			}
			dying.mu.Lock()
			defer dying.mu.Unlock()
			if len(dying.taken) != 1 || dying.taken[0] != string(body) {
				t.Fatalf("the router that died had %d questions", len(dying.taken))
			}
			for i, text := range asked() {
				if text != string(body) {
					t.Errorf("question %d has a body of %d bytes, not %d", i, len(text), len(body))
				}
			}
			if n := len(asked()); n != 3 {
				t.Errorf("the other router had %d questions", n)
			}
		})
	}
}
