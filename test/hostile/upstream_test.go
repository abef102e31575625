package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/test/stack"
)

// villain is a replica that is well behaved when it is probed and does what a test says when it is asked to generate.
type villain struct {
	net.Listener
	mu     sync.Mutex
	script func(io.Writer) // guarded by mu
	conns  sync.WaitGroup
}

func startVillain(t *testing.T) *villain {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &villain{Listener: l}
	v.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			v.conns.Go(func() { v.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); v.conns.Wait() })
	return v
}

func (v *villain) serve(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		body := ""
		switch req.URL.Path {
		case "/v1/models":
			body = `{"object":"list","data":[{"id":"evil","object":"model","created":1,"owned_by":"vllm","root":"evil","parent":null,"max_model_len":4096}]}`
		case "/version":
			body = `{"version":"0.20.0"}`
		case "/v1/chat/completions":
			v.mu.Lock()
			script := v.script
			v.mu.Unlock()
			script(c)
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}

func (v *villain) does(script func(io.Writer)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.script = script
}

// endless writes the text again and again until nobody reads it any more.
func endless(w io.Writer, text string) {
	many := strings.Repeat(text, 1+4096/len(text))
	for {
		if _, err := io.WriteString(w, many); err != nil {
			return
		}
	}
}

const (
	eventStream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	chunked     = eventStream + "Transfer-Encoding: chunked\r\n\r\n"
	oneEvent    = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// A replica may answer whatever it likes: the client gets a true error, an answer that visibly broke off, or the
// replica's own bytes, soon; and the router goes on.
func TestReplicasThatMisbehave(t *testing.T) {
	v := startVillain(t)
	s := startWith(t, v)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, `{"object":"chat.completion"}`)
	z.Close()
	const broke = `"error":{"message":"the replica's answer ended early`
	cut := "data: {" + broke + `"`
	cases := map[string]struct {
		script func(io.Writer)
		status int // 0: 502 when the first event came with the fault, else 200
		// The body is exact, or holds says what is in it. breaks: it does not come to its end.
		exact, holds string
		breaks       bool
	}{
		"endless headers":     {script: func(w io.Writer) { io.WriteString(w, eventStream); endless(w, "X-A: b\r\n") }, status: 502, holds: "malformed"},
		"an endless header":   {script: func(w io.Writer) { io.WriteString(w, eventStream+"X-A: "); endless(w, "b") }, status: 502, holds: "malformed"},
		"an endless status":   {script: func(w io.Writer) { endless(w, "HTTP/1.1 200 OK") }, status: 502, holds: "malformed"},
		"interim answers":     {script: func(w io.Writer) { endless(w, "HTTP/1.1 103 Early Hints\r\n\r\n") }, status: 502, holds: "malformed"},
		"another protocol":    {script: func(w io.Writer) { io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n") }, status: 502, holds: "malformed"},
		"no HTTP":             {script: func(w io.Writer) { io.WriteString(w, "+OK ready\r\n\r\n") }, status: 502, holds: "malformed"},
		"nothing":             {script: func(io.Writer) {}, status: 502, holds: "could not be reached"},
		"an endless chunk":    {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent)); endless(w, "0") }, holds: broke},
		"endless extensions":  {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent)+"5;"); endless(w, "a") }, holds: broke},
		"endless trailers":    {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent)+"0\r\n"); endless(w, "A: b\r\n") }, holds: broke},
		"a chunk of 2^60":     {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent)+"1000000000000000\r\n") }, holds: broke},
		"an end too soon":     {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent)) }, status: 200, holds: cut},
		"half an event":       {script: func(w io.Writer) { io.WriteString(w, chunked+chunk(oneEvent+`data: {"choi`)) }, status: 200, holds: "{\"choi\n\n" + cut},
		"no end of the event": {script: func(w io.Writer) { io.WriteString(w, eventStream+"\r\n"+oneEvent+"data: [DONE]") }, status: 200, holds: "data: [DONE]\n\n"},
		"too short a body": {script: func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{}")
		}, status: 502, holds: "ended early"},
		"too long a body": {script: func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\nsmuggled")
		}, status: 200, exact: "{}"},
		"gzip": {script: func(w io.Writer) {
			fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", zipped.Len(), zipped.Bytes())
		}, status: 200, exact: zipped.String()},
		"CRLF": {script: func(w io.Writer) {
			io.WriteString(w, chunked+chunk(strings.ReplaceAll(oneEvent+doneEvent, "\n", "\r\n"))+"0\r\n\r\n")
		}, status: 200, exact: strings.ReplaceAll(oneEvent+doneEvent, "\n", "\r\n")},
		"CR": {script: func(w io.Writer) {
			io.WriteString(w, chunked+chunk(strings.ReplaceAll(oneEvent+doneEvent, "\n", "\r"))+"0\r\n\r\n")
		}, status: 200, exact: strings.ReplaceAll(oneEvent+doneEvent, "\n", "\r")},
		"comments, fields": {script: func(w io.Writer) {
			io.WriteString(w, chunked+chunk(": ping\n\nid: 1\nretry: 5\n"+oneEvent+":\n\n"+doneEvent)+"0\r\n\r\n")
		}, status: 200, exact: "id: 1\nretry: 5\n" + oneEvent + ":\n\n" + doneEvent},
		"byte by byte": {script: func(w io.Writer) {
			io.WriteString(w, chunked)
			for _, b := range []byte(oneEvent + doneEvent) {
				io.WriteString(w, chunk(string(rune(b))))
			}
			io.WriteString(w, "0\r\n\r\n")
		}, status: 200, exact: oneEvent + doneEvent},
		"a huge refusal": {script: func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n")
			endless(w, "<p>")
		}, status: 400, holds: "<p>"},
		"a strange status": {script: func(w io.Writer) { io.WriteString(w, "HTTP/1.1 299 Odd\r\nContent-Length: 2\r\n\r\n{}") }, status: 299, exact: "{}"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v.does(c.script)
			status, body, err := ask(t, s, `{"model":"evil","stream":true,"messages":[{"role":"user","content":"hi"}]}`)
			known := status == c.status || c.status == 0 && (status == 200 || status == 502 || c.breaks)
			if !known || c.exact != "" && body != c.exact || !strings.Contains(body, c.holds) {
				t.Errorf("got %d %.600q, want %d %q%q", status, body, c.status, c.exact, c.holds)
			}
			if (err != nil) != c.breaks {
				t.Errorf("the answer ended with %v, want it to break off: %v", err, c.breaks)
			}
		})
	}
	alive(t, s)
}

// startWith puts the villain beside an honest replica. However often it fails, requests for its model go to it.
func startWith(t *testing.T, v *villain) *stack.Stack {
	t.Helper()
	s := stack.Start(t, stack.Options{Replicas: 1, Configure: func(c *config.Config) {
		c.Upstream.Breaker.Failures = 0
		c.Tokenizer.Enabled = false
		c.Registry.Replicas = append(c.Registry.Replicas, registry.Spec{ID: "evil", URL: "http://" + v.Addr().String()})
	}})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + s.HTTP + "/v1/models/evil")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the model is not there")
		}
	}
}

// ask sends a body and reads the answer; err is how reading ended, when not well.
func ask(t *testing.T, s *stack.Stack, body string) (status int, answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	// The registry looks after a replica that failed: wait until it may be asked again.
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	for {
		resp, err := transport.RoundTrip(req.Clone(ctx))
		if err != nil {
			return 0, "", err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.Header.Get("X-Kvpilot-Reason") != "NO_REPLICA" {
			return resp.StatusCode, string(text), err
		}
		req.Body = io.NopCloser(strings.NewReader(body))
		select {
		case <-ctx.Done():
			return 0, string(text), ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// A line without an end goes through, and stays nowhere.
func TestALineOf64MegabytesIsNotHeld(t *testing.T) {
	v := startVillain(t)
	s := startWith(t, v)
	const size, piece = 64 << 20, 64 << 10
	v.does(func(w io.Writer) {
		io.WriteString(w, chunked+"6\r\ndata: \r\n")
		block := chunk(strings.Repeat("x", piece))
		for range size / piece {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
		io.WriteString(w, chunk("\n\n"+doneEvent)+"0\r\n\r\n")
	})
	resp, err := http.Post("http://"+s.HTTP+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"evil","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m runtime.MemStats
	runtime.GC() // what is held, without the garbage that other tests make room for
	runtime.ReadMemStats(&m)
	begin, most := m.HeapAlloc, uint64(0)
	buf, total := make([]byte, piece), 0
	for n := 0; ; n++ {
		got, err := resp.Body.Read(buf)
		total += got
		if n%100 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := size + len("data: \n\n"+doneEvent); total != want {
		t.Errorf("%d bytes came of %d", total, want)
	}
	if most > begin+size/2 {
		t.Errorf("%d MB were held", (most-begin)>>20)
	}
	alive(t, s)
}
