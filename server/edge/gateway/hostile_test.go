package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// dial opens a bare connection, for requests that no client would send.
func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// exchange writes raw bytes and reads one answer and whatever follows it on the connection.
func exchange(t *testing.T, url, raw string) (resp *http.Response, body, rest string) {
	t.Helper()
	conn := dial(t, url)
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Close {
		more, err := io.ReadAll(in)
		if err != nil {
			t.Errorf("the connection stays open: %v", err)
		}
		rest = string(more)
	}
	return resp, string(text), rest
}

func TestSmugglingShapes(t *testing.T) {
	url := start(t, &services{chat: echo})
	const smuggled = "GET /openapi.json HTTP/1.1\r\nHost: h\r\n\r\n"
	for name, tc := range map[string]struct {
		head, body string
		status     int
	}{
		"length and chunks": {"Content-Length: 4\r\nTransfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n" + smuggled, 200},
		"two lengths":       {"Content-Length: 2\r\nContent-Length: 3", "{}" + smuggled, 400},
		"a signed length":   {"Content-Length: +2", "{}" + smuggled, 400},
		"chunked twice":     {"Transfer-Encoding: chunked, chunked", "0\r\n\r\n" + smuggled, 501},
		"another coding":    {"Transfer-Encoding: gzip", "x", 501},
		"a space before :":  {"Content-Length : 2", "{}" + smuggled, 400},
	} {
		t.Run(name, func(t *testing.T) {
			resp, _, rest := exchange(t, url, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"+tc.head+"\r\n\r\n"+tc.body)
			if resp.StatusCode != tc.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tc.status)
			}
			if !resp.Close || rest != "" {
				t.Errorf("the connection is used again (close %t): %q", resp.Close, rest)
			}
		})
	}
	t.Run("control characters in a header", func(t *testing.T) {
		resp, _, _ := exchange(t, url, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\n{}")
		if resp.StatusCode != 400 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}

// A client that closes its sending side after the request looks as one that has closed the connection: TCP says the same of both.
// The call is cancelled, and one that still reads learns why.
func TestAHalfClosedConnectionIsAClientThatLeft(t *testing.T) {
	for name, begun := range map[string]bool{"before the answer": false, "in mid-stream": true} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{})
			url := start(t, &services{chat: func(_ *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
				if begun {
					if err := out.Send(&httpbody.HttpBody{ContentType: "text/event-stream", Data: []byte("data: {}\n\n")}); err != nil {
						return err
					}
				}
				close(began)
				<-out.Context().Done()
				return out.Context().Err()
			}})
			conn := dial(t, url)
			if _, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
				t.Fatal(err)
			}
			<-began
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			status := http.StatusOK
			if !begun {
				status = 499
			}
			if resp.StatusCode != status || !strings.Contains(string(text), "the sending side of it") || !strings.Contains(string(text), "cancelled") {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
		})
	}
}

func TestSlowBodyIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for five seconds")
	}
	t.Parallel()
	url := start(t, &services{chat: echo}, func(c *gateway.Config, _ *gateway.Params) { c.BodyTimeout = 50 * time.Millisecond })
	resp, body, _ := exchange(t, url, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{")
	if resp.StatusCode != 408 || !strings.Contains(body, "body_timeout") || !resp.Close {
		t.Errorf("%d %s (close %t)", resp.StatusCode, body, resp.Close)
	}
	// The deadline is the body's, not the answer's.
	slow := start(t, &services{chat: func(e *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
		select {
		case <-out.Context().Done():
			return out.Context().Err()
		case <-time.After(150 * time.Millisecond):
		}
		return echo(e, in, out)
	}}, func(c *gateway.Config, _ *gateway.Params) { c.BodyTimeout = 50 * time.Millisecond })
	if resp, got := call(t, "POST", slow+"/v1/chat/completions", "{}"); resp.StatusCode != 200 || got != "{}" {
		t.Errorf("an answer that takes longer than the body may: %d %q", resp.StatusCode, got)
	}
}

func TestAnnouncedBodyTakesNoMemoryBeforeItComes(t *testing.T) {
	url := start(t, &services{chat: echo}, func(c *gateway.Config, _ *gateway.Params) { c.MaxBodyBytes, c.MaxBodiesBytes = 1<<40, 1<<41 })
	conn := dial(t, url)
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n{", int64(1)<<39); err != nil {
		t.Fatal(err)
	}
	if resp, got := call(t, "POST", url+"/v1/chat/completions", "{}"); resp.StatusCode != 200 || got != "{}" {
		t.Errorf("meanwhile: %d %q", resp.StatusCode, got)
	}
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	began, done := make(chan struct{}, 2), make(chan struct{})
	url := start(t, &services{chat: func(e *httpcall.Call, in *httpbody.HttpBody, out bodies) error {
		began <- struct{}{}
		<-done
		return echo(e, in, out)
	}}, func(c *gateway.Config, _ *gateway.Params) { c.MaxBodyBytes, c.MaxBodiesBytes = 1000, 2500 })
	body := strings.Repeat("x", 1000)
	first := make(chan string)
	go func() {
		resp, err := http.Post(url+"/v1/chat/completions", "text/plain", strings.NewReader(body))
		if err != nil {
			first <- err.Error()
			return
		}
		text, _ := io.ReadAll(resp.Body) // a short answer fails the comparison below
		_ = resp.Body.Close()
		first <- string(text)
	}()
	<-began
	resp, got := call(t, "POST", url+"/v1/chat/completions", body)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(got, "overloaded") {
		t.Errorf("a body too many: %d %s", resp.StatusCode, got)
	}
	close(done)
	if got := <-first; got != body {
		t.Errorf("the first request: %q", got)
	}
	for range 5 { // what was held is given back
		if resp, got := call(t, "POST", url+"/v1/chat/completions", body); resp.StatusCode != 200 {
			t.Fatalf("afterwards: %d %s", resp.StatusCode, got)
		}
		<-began
	}
}

func TestClientThatTakesNothingIsCutOff(t *testing.T) {
	ended := make(chan error, 1)
	url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
		if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
			return err
		}
		piece := &httpbody.HttpBody{Data: bytes.Repeat([]byte("x"), 64<<10)}
		for {
			if err := out.Send(piece); err != nil {
				ended <- err
				return err
			}
		}
	}}, func(c *gateway.Config, _ *gateway.Params) { c.StallTimeout = 100 * time.Millisecond })
	conn := dial(t, url)
	if _, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the handler is stuck behind a client that reads nothing")
	}
}

func TestHeadHasNoBody(t *testing.T) {
	url := start(t, &services{chat: echo})
	for _, path := range []string{"/v1/models/m", "/openapi.json"} {
		resp, got := call(t, "HEAD", url+path, "")
		if resp.StatusCode != 200 || got != "" || resp.ContentLength <= 0 {
			t.Errorf("HEAD %s: %d, %d bytes, length %d", path, resp.StatusCode, len(got), resp.ContentLength)
		}
	}
}

func TestHostilePaths(t *testing.T) {
	url := start(t, &services{chat: echo})
	for _, target := range []string{
		"*", "/", "//", "/..", "/v1/../v1/models", "/v1/models/", "/v1/models/%2e%2e%2f", "/v1/chat/completions/", "/V1/chat/completions",
		"/v1/models/%00", "/v1/models/%ff", "/kvpilot/v1/reservations/:report", "/kvpilot/v1/reservations/a:b:report", "/%", "/v1/chat%2Fcompletions",
		"http://other/v1/models/m", "/v1/responses//cancel", "/v1/models?%zz=1&;", "/kvpilot/v1/decisions?model=%ff", "/" + strings.Repeat("a/", 2000),
	} {
		for _, method := range []string{"GET", "POST", "OPTIONS", "DELETE"} {
			resp, body, _ := exchange(t, url, method+" "+target+" HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			if resp.StatusCode >= 500 && resp.StatusCode != 501 && !strings.Contains(body, `"internal"`) {
				t.Errorf("%s %s: %d %s", method, target, resp.StatusCode, body)
			}
			if resp.StatusCode >= 400 && strings.HasPrefix(body, "{") && !json.Valid([]byte(body)) {
				t.Errorf("%s %s: %q", method, target, body)
			}
		}
	}
}

// FuzzRequest sends any method, target, header and body through the whole surface: whatever
// comes, there is an answer, errors are JSON, and nothing panics.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/chat/completions", "content-type", "application/json", []byte(`{"model":"m"}`))
	f.Add("POST", "/kvpilot/v1/choose", "x-body-truncated", "1/2", []byte(`{"token_ids":{"ids":[1,-1]},"lease":"9e99s"}`))
	f.Add("GET", "/kvpilot/v1/decisions?page_size=-1&model=%00", "grpc-timeout", "1n", []byte{})
	f.Add("GET", "/v1/models/%2F", "x-http-method-override", "DELETE", []byte("\xff"))
	f.Add("POST", "/kvpilot/v1/reservations:track", "te", "trailers", []byte("{}\n{"))
	s := &services{chat: echo}
	handler := newHandler(f, s)
	f.Fuzz(func(t *testing.T, method, target, name, value string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://h", bytes.NewReader(body))
		if err != nil {
			t.Skip()
		}
		u, err := req.URL.Parse(target)
		if err != nil {
			t.Skip()
		}
		req.URL = u
		req.Header.Set(name, value)
		req.ProtoMajor = 1
		w := httptest.NewRecorder()
		func() {
			defer func() {
				if v := recover(); v != nil && v != http.ErrAbortHandler {
					t.Fatalf("panic: %v", v)
				}
			}()
			handler.ServeHTTP(w, req)
		}()
		if w.Code >= 400 && w.Header().Get("X-Kvpilot-Reason") != "" && !json.Valid(w.Body.Bytes()) && !bytes.HasPrefix(w.Body.Bytes(), []byte("{")) {
			t.Errorf("%s %s: %d %q", method, target, w.Code, w.Body)
		}
	})
}
