package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// eachRead runs a test with both ways to read a socket; callers must not see a difference.
func eachRead(t *testing.T, change func(*Config), test func(*testing.T, *Client)) {
	t.Helper()
	for name, plain := range map[string]bool{"raw reads": false, "plain reads": true} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			if change != nil {
				change(&cfg)
			}
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			c := New(cfg, Params{PlainSockets: plain})
			t.Cleanup(func() { c.transport.shut() })
			test(t, c)
		})
	}
}

func serve(t *testing.T, h http.HandlerFunc) Target {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return Target{Replica: &replica.Replica{ID: "r1", URL: s.URL, Slots: []replica.Slot{0}}}
}

// serveRaw answers every connection's first request with the bytes of answer, then closes.
func serveRaw(t *testing.T, answer string) Target {
	t.Helper()
	return serveConn(t, func(c net.Conn) {
		if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, answer)
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
		}
	})
}

func serveConn(t *testing.T, handle func(net.Conn)) Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { c.Close() })
			all.Go(func() {
				defer stop()
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return Target{Replica: &replica.Replica{ID: "r1", URL: "http://" + l.Addr().String(), Slots: []replica.Slot{0}}}
}

func ctxFor(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func post(body string) *Request {
	return &Request{Method: "POST", Path: "/v1/chat/completions", ContentType: "application/json", Body: []byte(body)}
}

func TestARequestArrivesAsItShould(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		var got *http.Request
		var body []byte
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			got = r
			body, _ = io.ReadAll(r.Body)
			w.Header().Set("Openai-Version", "yes")
			w.Header().Set("X-Engine", "yes")
			w.Header().Set("X-Accel-Redirect", "/etc/passwd")
			w.Header().Add("Set-Cookie", "a=b")
			w.WriteHeader(418)
			io.WriteString(w, "short and stout")
		})
		target.Replica.APIKey = secret.New("the-key")
		target.Replica.Slots = []replica.Slot{4, 5}
		target.Rank = 1
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
		resp, err := c.Do(trace.ContextWithSpanContext(ctxFor(t), span), target, &Request{
			Method: "POST", Path: "/v1/x", Query: "a=1&b=%20", ContentType: "application/json", RequestID: "id-1", Body: []byte(`{"x":1}`),
			Header: http.Header{"Authorization": {"Bearer client"}, "Cookie": {"c"}, "X-Custom": {"1", "2"}, "Connection": {"close, X-Hop"}, "X-Hop": {"h"},
				"Content-Type": {"text/plain"}, "Content-Length": {"999"}, "Transfer-Encoding": {"chunked"}, "Traceparent": {"old"}, "Accept-Encoding": {"gzip"},
				"X-Data-Parallel-Rank": {"7"}, "X-Bad": {"a\r\nX-Injected: 1"}, "Bad Name": {"v"}, "X-Request-Id": {"client-id"}, "x-lower": {"l"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := resp.ReadAll(1 << 20)
		if err != nil || string(answer) != "short and stout" || resp.Status != 418 || resp.ContentLength != 15 {
			t.Errorf("answer: got %q, status %d, length %d, %v", answer, resp.Status, resp.ContentLength, err)
		}
		resp.Close()
		if resp.Header.Get("Openai-Version") != "yes" || len(resp.Header) != 2 || resp.Header.Get("Content-Type") == "" {
			t.Errorf("answer's headers: %v", resp.Header)
		}
		if got.Method != "POST" || got.URL.RequestURI() != "/v1/x?a=1&b=%20" || string(body) != `{"x":1}` || got.ContentLength != 7 {
			t.Errorf("request: %s %s, %q", got.Method, got.URL, body)
		}
		for name, want := range map[string]string{
			"Authorization": "Bearer the-key", "X-Request-Id": "id-1", "Content-Type": "application/json", "X-Data-Parallel-Rank": "1", "X-Lower": "l",
			"Traceparent": "00-01000000000000000000000000000000-0200000000000000-01", "Cookie": "", "X-Hop": "", "X-Bad": "", "X-Injected": "", "Accept-Encoding": "",
		} {
			if strings.Join(got.Header.Values(name), ",") != want {
				t.Errorf("%s: got %q, want %q", name, got.Header.Values(name), want)
			}
		}
		if !slices.Equal(got.Header["X-Custom"], []string{"1", "2"}) {
			t.Errorf("X-Custom: got %q", got.Header["X-Custom"])
		}
	})
}

func TestAStreamComesAsItIsSent(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		next := make(chan struct{})
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 20 {
				fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
				w.(http.Flusher).Flush() // the server's writer is one
				<-next
			}
		})
		resp, err := c.Do(ctxFor(t), target, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Close()
		if resp.ContentLength != -1 {
			t.Errorf("got length %d, want -1", resp.ContentLength)
		}
		for i := range 20 {
			b, err := resp.Next()
			if want := fmt.Sprintf("data: {\"n\":%d}\n\n", i); err != nil || string(b) != want {
				t.Fatalf("got %q, %v; want %q", b, err, want)
			}
			next <- struct{}{}
		}
		if b, err := resp.Next(); err != io.EOF || b != nil {
			t.Errorf("at the end: got %q, %v", b, err)
		}
		if _, err := resp.Next(); err != io.EOF {
			t.Errorf("after the end: got %v", err)
		}
	})
}

func TestBodiesOfEverySizeBothWays(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Sized") != "" {
				w.Header().Set("Content-Length", fmt.Sprint(r.ContentLength))
			}
			body, _ := io.ReadAll(r.Body)
			w.Write(body)
		})
		for _, size := range []int{0, 1, 4095, 4096, 4097, joinedBody, joinedBody + 1, 300_000, 3_000_000} {
			for _, sized := range []string{"", "1"} {
				body := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
				r := &Request{Method: "POST", Path: "/", Header: http.Header{"X-Sized": {sized}}, Body: body}
				resp, err := c.Do(ctxFor(t), target, r)
				if err != nil {
					t.Fatalf("size %d: %v", size, err)
				}
				got, err := resp.ReadAll(1 << 30)
				resp.Close()
				if err != nil || !bytes.Equal(got, body) {
					t.Errorf("size %d: got %d bytes, %v", size, len(got), err)
				}
			}
		}
	})
}

func TestAStreamedBodyIsSentAsItIsRead(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%d %v %s", r.ContentLength, err == nil, b)
		})
		for _, size := range []int64{-1, 5} {
			resp, err := c.Do(ctxFor(t), target, &Request{Method: "POST", Path: "/", Body: []byte("head "), Stream: strings.NewReader("tail!"), StreamSize: size})
			if err != nil {
				t.Fatal(err)
			}
			got, err := resp.ReadAll(1000)
			resp.Close()
			want := "10 true head tail!"
			if size < 0 {
				want = "-1 true head tail!"
			}
			if err != nil || string(got) != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		}
		_, err := c.Do(ctxFor(t), target, &Request{Method: "POST", Path: "/", Stream: io.MultiReader(strings.NewReader("x"), badReader{}), StreamSize: -1})
		if err == nil || Classify(nil, err) != retry.Canceled {
			t.Errorf("a body that cannot be read: got %v, outcome %v; it is not the replica's fault", err, Classify(nil, err))
		}
	})
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

func TestConnectionsAreUsedAgain(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		ports := map[string]bool{}
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			ports[r.RemoteAddr] = true
			io.WriteString(w, "ok")
		})
		for range 10 {
			resp, err := c.Do(ctxFor(t), target, post("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resp.ReadAll(100); err != nil {
				t.Fatal(err)
			}
			resp.Close()
		}
		if len(ports) != 1 {
			t.Errorf("10 requests used %d connections", len(ports))
		}
	})
}

func TestAConnectionThatTheReplicaClosedIsNoFailure(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		// The replica answers one request on each connection, claims to keep it, and closes it:
		// at once, or when the next request is there, as vLLM does when its 5 s have passed.
		for _, late := range []bool{false, true} {
			target := serveConn(t, func(conn net.Conn) {
				in := bufio.NewReader(conn)
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				if late {
					in.ReadByte()
				}
			})
			for i := range 5 {
				resp, err := c.Do(ctxFor(t), target, post(strings.Repeat("x", 100+i*50_000)))
				if err != nil {
					t.Fatalf("request %d, late %v: %v", i, late, err)
				}
				if b, err := resp.ReadAll(100); err != nil || string(b) != "ok" {
					t.Fatalf("request %d, late %v: %q, %v", i, late, b, err)
				}
				resp.Close()
				if !late {
					time.Sleep(5 * time.Millisecond) // real sockets: let the close arrive
				}
			}
		}
	})
}

func TestLeavingStopsTheEngine(t *testing.T) {
	leave := map[string]func(*Response, context.CancelFunc){
		"close":  func(r *Response, _ context.CancelFunc) { r.Close() },
		"cancel": func(_ *Response, cancel context.CancelFunc) { cancel() },
	}
	for name, how := range leave {
		t.Run(name, func(t *testing.T) {
			eachRead(t, nil, func(t *testing.T, c *Client) {
				stopped := make(chan struct{}, 1)
				target := serve(t, func(w http.ResponseWriter, r *http.Request) {
					io.WriteString(w, "data: 1\n\n")
					w.(http.Flusher).Flush() // the server's writer is one
					<-r.Context().Done()
					stopped <- struct{}{}
				})
				ctx, cancel := context.WithCancel(ctxFor(t))
				defer cancel()
				resp, err := c.Do(ctx, target, post("{}"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := resp.Next(); err != nil {
					t.Fatal(err)
				}
				how(resp, cancel)
				select {
				case <-stopped:
				case <-time.After(30 * time.Second):
					t.Fatal("the engine was not told")
				}
				if _, err := resp.Next(); name == "cancel" && Classify(nil, err) != retry.Canceled {
					t.Errorf("after a cancel: got %v", err)
				}
				resp.Close()
				resp.Close()
			})
		})
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		release := make(chan struct{})
		target := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
		defer close(release)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := c.Do(ctx, target, post("{}"))
		if !errors.Is(err, context.DeadlineExceeded) || Classify(nil, err) != retry.Canceled {
			t.Errorf("got %v, %v", err, Classify(nil, err))
		}
	})
}

func TestFailuresAreTold(t *testing.T) {
	short := func(c *Config) { c.ResponseHeaderTimeout, c.StallTimeout = 100*time.Millisecond, 100*time.Millisecond }
	silent := func(c net.Conn) {
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		io.Copy(io.Discard, c)
	}
	stalls := func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return // an answer before the request is another failure
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		silent(c)
	}
	closed := serveConn(t, func(net.Conn) {})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, err := net.Dial("tcp", l.Addr().String()) // no listener can get its port while it is open
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	nobody := Target{Replica: &replica.Replica{ID: "r1", URL: "http://" + taken.LocalAddr().String()}}
	cases := []struct {
		name   string
		target Target
		want   retry.Verdict
	}{
		{"nobody listens", nobody, retry.Unreachable},
		{"closed at once", closed, retry.Reset},
		{"no answer", serveConn(t, silent), retry.Timeout},
		{"stall", serveConn(t, stalls), retry.Broken},
		{"broken length", serveRaw(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), retry.Broken},
		{"broken chunks", serveRaw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"), retry.Broken},
		{"missing last chunk", serveRaw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"), retry.Broken},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			eachRead(t, short, func(t *testing.T, c *Client) {
				resp, err := c.Do(ctxFor(t), tc.target, post("{}"))
				if err == nil {
					_, err = resp.ReadAll(1000)
					resp.Close()
				}
				if got := Classify(nil, err); err == nil || got != tc.want {
					t.Errorf("got %v (%v), want %v", got, err, tc.want)
				}
			})
		})
	}
}

func TestAConnectionThatTheReplicaWillCloseIsNotKept(t *testing.T) {
	var connections atomic.Int64
	target := serveConn(t, func(c net.Conn) {
		connections.Add(1)
		for { // a replica that says close and is slow to do it
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	c := New(DefaultConfig(), Params{})
	t.Cleanup(c.transport.shut)
	for range 2 {
		if _, err := answerOf(t, c, target, &Request{Method: http.MethodGet, Path: "/"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("two requests over %d connections, want one each", n)
	}
}
