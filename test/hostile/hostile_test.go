// Package hostile sends the whole router what no honest client sends.
package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

func start(t *testing.T) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.Listen.ReadHeaderTimeout = time.Second
		c.Gateway.BodyTimeout = time.Second
		c.Gateway.MaxBodyBytes = 4 << 20
	}})
}

// exchange sends bytes as they are and reads one answer; status 0 means that the router closed
// the connection without one.
func exchange(t *testing.T, address, wire string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(programs.Patient(10 * time.Second)))
	go io.WriteString(c, wire)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Errorf("no answer and no close within 10 s to %.100q", wire)
		}
		return 0, ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func post(body string, headers ...string) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s",
		len(body), strings.Join(headers, ""), body)
}

const good = `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":2}`

// alive checks that the router still serves honest clients.
func alive(t *testing.T, s *stack.Stack) {
	t.Helper()
	if status, body := exchange(t, s.HTTP, post(good)); status != http.StatusOK {
		t.Fatalf("afterwards an honest request gets %d %s", status, body)
	}
}

func TestRequestsThatCouldBeReadInTwoWaysAreRefused(t *testing.T) {
	s := start(t)
	const smuggled = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	cases := map[string]string{
		"length and chunks":       head + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"two lengths":             head + "Content-Length: 4\r\nContent-Length: 60\r\n\r\nhi!!" + smuggled,
		"strange chunking":        head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
		"chunking twice":          head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
		"space before colon":      head + "Content-Length : 4\r\n\r\nhi!!" + smuggled,
		"negative length":         head + "Content-Length: -1\r\n\r\n" + smuggled,
		"folded header":           head + "X-A: b\r\n Content-Length: 4\r\nBad Header: x\r\n\r\n",
		"bare LF in the head":     "POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 4\n\nhi!!" + smuggled,
		"bare CR in a header":     head + "X-A: a\rContent-Length: 4\r\nContent-Length: 0\r\n\r\n",
		"chunk without a length":  head + "Transfer-Encoding: chunked\r\n\r\n;a=b\r\nhi\r\n0\r\n\r\n" + smuggled,
		"chunk with a bare LF":    head + "Transfer-Encoding: chunked\r\n\r\n2\nhi\n0\n\n" + smuggled,
		"HTTP/1.0 with chunks":    strings.Replace(head, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"length in hexadecimal":   head + "Content-Length: 0x4\r\n\r\nhi!!" + smuggled,
		"a list of lengths":       head + "Content-Length: 4, 4\r\n\r\nhi!!" + smuggled,
		"NUL in a header":         head + "X-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
		"chunk of a wrong length": head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nhi\r\n0\r\n\r\n",
		"no host":                 "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
		"no HTTP":                 "hello there\r\n\r\n",
		"HTTP/2 preface":          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	}
	for name, wire := range cases {
		t.Run(name, func(t *testing.T) {
			if status, body := exchange(t, s.HTTP, wire); status == http.StatusOK {
				t.Errorf("got 200 %.200s", body)
			}
		})
	}
	alive(t, s)
}

// What a header says never becomes a header of another message, on either side of the router.
func TestNoHeaderIsInjected(t *testing.T) {
	s := start(t)
	for name, header := range map[string]string{
		"id with an encoded line": "X-Request-Id: a%0d%0aX-Injected: 1\r\n",
		"id with a space":         "X-Request-Id: a X-Injected: 1\r\n",
		"id with high bytes":      "X-Request-Id: \xe2\x80\xa8X-Injected: 1\r\n",
		"a very long id":          "X-Request-Id: " + strings.Repeat("a", 5000) + "\r\n",
		"two ids":                 "X-Request-Id: a\r\nX-Request-Id: b\r\n",
		"session with high bytes": "X-Session-Id: \xff\xfe\r\n",
		"a header named hop":      "Connection: X-Request-Id, close\r\nX-Request-Id: a\r\n",
		"trace that is none":      "Traceparent: 00-zz-zz-zz\r\nTracestate: =,=\r\n",
		"another host":            "X-Forwarded-Host: evil\r\nForwarded: for=\"x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", s.HTTP)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.WriteString(c, post(good, header)); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			id := resp.Header.Values("X-Request-Id")
			if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Injected") != "" || len(id) != 1 || len(id[0]) > 256 || strings.IndexFunc(id[0], func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
				t.Errorf("got %d, id %q, %v", resp.StatusCode, id, resp.Header)
			}
		})
	}
	alive(t, s)
}

func TestHeadersThatAreTooLarge(t *testing.T) {
	s := start(t)
	for name, header := range map[string]string{
		"one":  "X-A: " + strings.Repeat("a", 1<<20) + "\r\n",
		"many": strings.Repeat("X-A: b\r\n", 200_000),
	} {
		if status, _ := exchange(t, s.HTTP, post(good, header)); status != http.StatusRequestHeaderFieldsTooLarge && status != 0 {
			t.Errorf("%s: got %d", name, status)
		}
	}
	alive(t, s)
}

func TestCompressedAndOversizedBodiesAreRefused(t *testing.T) {
	s := start(t)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 { // 64 MB of zeros in 64 kB
		z.Write(make([]byte, 1<<20))
	}
	z.Close()
	if status, _ := exchange(t, s.HTTP, post(bomb.String(), "Content-Encoding: gzip\r\n")); status != http.StatusUnsupportedMediaType {
		t.Errorf("a compressed body got %d", status)
	}
	if status, _ := exchange(t, s.HTTP, post(`{"model":"sim","prompt":"`+strings.Repeat("a", 5<<20)+`"}`)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("an oversized body got %d", status)
	}
	chunks := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("40000\r\n"+strings.Repeat("a", 0x40000)+"\r\n", 20)
	if status, _ := exchange(t, s.HTTP, chunks); status != http.StatusRequestEntityTooLarge && status != 0 {
		t.Errorf("an oversized chunked body got %d", status)
	}
	alive(t, s)
}

func TestSlowClientsAreLetGo(t *testing.T) {
	s := start(t)
	before := runtime.NumGoroutine()
	var conns []net.Conn
	for i := range 40 {
		c, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		part := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow" // half a head
		if i%2 == 1 {
			part = post(good)
			part = part[:len(part)-10] // half a body
		}
		if _, err := io.WriteString(c, part); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range conns {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("connection %d is still open after 10 s: %v", i, err)
		}
		c.Close()
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before+20 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond) // real sockets: let the server notice
	}
	if after := runtime.NumGoroutine(); after > before+20 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
	alive(t, s)
}
