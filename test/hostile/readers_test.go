package hostile

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/test/stack"
)

// firehose is a replica whose streams never end, and how many of them it writes.
func firehose(t *testing.T) (url string, streams *atomic.Int64) {
	t.Helper()
	streams = &atomic.Int64{}
	event := []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + strings.Repeat("a", 32<<10) + "\"}}]}\n\n")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"sim"}]}`)
		case "/v1/chat/completions":
			streams.Add(1)
			defer streams.Add(-1)
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := w.Write(event); err != nil || r.Context().Err() != nil {
					return
				}
			}
		case "/health", "/version":
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, streams
}

const stall = 500 * time.Millisecond

func stallStack(t *testing.T) (*stack.Stack, *atomic.Int64) {
	t.Helper()
	url, streams := firehose(t)
	return stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.Registry.Replicas = []registry.Spec{{URL: url}}
		c.Tokenizer.Enabled = false
		c.Gateway.StallTimeout = stall
	}}), streams
}

// none waits until no stream is written any more.
func none(t *testing.T, what string, streams *atomic.Int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * stall); streams.Load() > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: %d streams are held by clients that read nothing", what, streams.Load())
			return
		}
	}
}

// some waits until n streams are written.
func some(t *testing.T, n int64, streams *atomic.Int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); streams.Load() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d streams began", streams.Load(), n)
		}
	}
}

const streaming = `{"model":"sim","stream":true,"messages":[{"role":"user","content":"hi"}]}`

// Item 5: streams that nobody reads end, over REST, HTTP/2 and gRPC.
func TestStreamsThatNobodyReadsEnd(t *testing.T) {
	const clients = 8
	s, streams := stallStack(t)
	t.Run("REST", func(t *testing.T) {
		for range clients {
			c, err := net.Dial("tcp", s.HTTP)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, post(streaming)); err != nil {
				t.Fatal(err)
			}
		}
		some(t, clients, streams)
		none(t, "REST", streams)
	})
	t.Run("HTTP2", func(t *testing.T) {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols}
		defer transport.CloseIdleConnections()
		for range clients {
			resp, err := transport.RoundTrip(http2Request(t, s.HTTP))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.ProtoMajor != 2 {
				t.Fatalf("HTTP/%d", resp.ProtoMajor)
			}
		}
		none(t, "HTTP/2", streams)
	})
	t.Run("gRPC", func(t *testing.T) {
		for range clients {
			conn, err := grpc.NewClient("passthrough:///"+s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := kvpilotv1.NewInferenceServiceClient(conn).ChatCompletions(t.Context(), &httpbody.HttpBody{Data: []byte(streaming)}); err != nil {
				t.Fatal(err)
			}
		}
		some(t, clients, streams)
		none(t, "gRPC", streams)
	})
}

// Item 5: answers that nobody reads end too, at every HTTP door.
func TestAnswersThatNobodyReadsEnd(t *testing.T) {
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) { c.Gateway.StallTimeout = stall }})
	for range 400 { // something to list
		if code, answer := exchange(t, s.HTTP, strings.Replace(post(`{"model":"sim","text":"a","booking":"BOOKING_DRY_RUN"}`), "/v1/chat/completions", "/kvpilot/v1/choose", 1)); code != http.StatusOK {
			t.Fatalf("%d %s", code, answer)
		}
	}
	const asked = 400
	for name, at := range map[string][2]string{
		"typed":   {s.HTTP, "/kvpilot/v1/decisions?page_size=1000"},
		"openapi": {s.HTTP, "/openapi.json"},
		"metrics": {s.Admin, "/metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", at[0])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, strings.Repeat(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", at[1]), asked)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * stall)
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			answers, err := io.ReadAll(c)
			if n := bytes.Count(answers, []byte("HTTP/1.1 200")); n == asked {
				t.Errorf("all %d answers waited for a client that did not read (%d bytes, %v)", n, len(answers), err)
			}
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				t.Errorf("the connection is still open")
			}
		})
	}
}

// A stream that is quiet is not one that nobody reads.
func TestQuietStreamsGoOn(t *testing.T) {
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) { c.Gateway.StallTimeout = 200 * time.Millisecond }})
	for _, version := range []int{1, 2} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(version == 1)
		protocols.SetUnencryptedHTTP2(version == 2)
		transport := &http.Transport{Protocols: protocols}
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.HTTP+"/kvpilot/v1/decisions:watch", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			time.Sleep(700 * time.Millisecond)
			if code, answer := exchange(t, s.HTTP, post(good)); code != http.StatusOK {
				t.Fatalf("%d %s", code, answer)
			}
			if n, err := resp.Body.Read(make([]byte, 64<<10)); n == 0 || err != nil {
				t.Errorf("HTTP/%d: a watch that was quiet for longer than the stall timeout ended: %v", version, err)
			}
		}
		resp.Body.Close()
		transport.CloseIdleConnections()
	}
}

func http2Request(t *testing.T, address string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/v1/chat/completions", strings.NewReader(streaming))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}
