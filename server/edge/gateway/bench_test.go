package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// nowhere is a ResponseWriter without a connection.
type nowhere struct{ header http.Header }

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w *nowhere) WriteHeader(int)             {}
func (w *nowhere) FlushError() error           { return nil }

func (w *nowhere) SetReadDeadline(time.Time) error  { return nil }
func (w *nowhere) SetWriteDeadline(time.Time) error { return nil }

type reader struct{ bytes.Reader }

func (*reader) Close() error { return nil }

// BenchmarkRequest is the REST surface's own share of a small request: everything between
// net/http and the handler of the RPC, and back.
func BenchmarkRequest(b *testing.B) {
	b.ReportAllocs()
	header := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"4"}}
	out := httpbody.HttpBody{Data: []byte("null")}
	g := newHandler(b, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, to bodies) error {
		if err := e.Answer.Begin(200, header); err != nil {
			return err
		}
		return to.Send(&out)
	}})
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	in := &reader{}
	r := &http.Request{
		Method: "POST", URL: &url.URL{Path: "/v1/chat/completions"}, ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(body)), RemoteAddr: "127.0.0.1:1", Host: "h",
		Header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"x"}, "Accept": {"*/*"}, "Authorization": {"Bearer x"}, "X-Request-Id": {"0123456789"}},
		Body:   in,
	}
	w := &nowhere{header: http.Header{}}
	for b.Loop() {
		in.Reset(body)
		g.ServeHTTP(w, r)
	}
}

// BenchmarkChunk is the same for one chunk of a stream.
func BenchmarkChunk(b *testing.B) {
	b.ReportAllocs()
	g := newHandler(b, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, to bodies) error {
		if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
			return err
		}
		out := httpbody.HttpBody{Data: make([]byte, 220)}
		for b.Loop() {
			if err := to.Send(&out); err != nil {
				return err
			}
		}
		return nil
	}})
	r := &http.Request{Method: "POST", URL: &url.URL{Path: "/v1/chat/completions"}, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody}
	g.ServeHTTP(&nowhere{header: http.Header{}}, r)
}

// BenchmarkWrite is one chunk of a stream whose connection is kept open, and of one without that.
func BenchmarkWrite(b *testing.B) {
	for name, every := range map[string]time.Duration{"kept": 15 * time.Second, "plain": 0} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			g := newHandler(b, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, _ bodies) error {
				e.Answer.(intake.Awaiter).Await()
				if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
					return err
				}
				chunk := make([]byte, 220)
				for b.Loop() {
					if err := e.Answer.Write(chunk); err != nil {
						return err
					}
				}
				return nil
			}}, func(c *gateway.Config, _ *gateway.Params) { c.SSEKeepAlive = every })
			r := &http.Request{Method: "POST", URL: &url.URL{Path: "/v1/chat/completions"}, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody}
			g.ServeHTTP(&nowhere{header: http.Header{}}, r)
		})
	}
}

// BenchmarkTyped is the REST surface's share of a small typed request: a choice, a choice by 8,192 token ids, and a list of 16 replicas.
func BenchmarkTyped(b *testing.B) {
	list := &kvpilotv1.ListResponse{}
	for range 16 {
		list.Replicas = append(list.Replicas, &kvpilotv1.Replica{
			ReplicaId: "replica-1", Url: "http://10.0.0.1:8000", Labels: map[string]string{"zone": "a"}, Ranks: []*kvpilotv1.ReplicaRank{{Rank: 1, KnownBlocks: 4096}},
			Models: []*kvpilotv1.ReplicaModel{{Id: "m", MaxModelLen: 32768}},
		})
	}
	ids := strings.TrimSuffix(strings.Repeat("12345,", 8192), ",")
	for _, test := range []struct{ name, method, path, body string }{
		{"choose", "POST", "/kvpilot/v1/choose", `{"model":"m","text":"hello","session_id":"s"}`},
		{"choose8k", "POST", "/kvpilot/v1/choose", `{"model":"m","token_ids":{"ids":[` + ids + `]}}`},
		{"list", "GET", "/kvpilot/v1/replicas", ""},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			g := newHandler(b, &services{list: list})
			in := &reader{}
			r := &http.Request{
				Method: test.method, URL: &url.URL{Path: test.path}, ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(test.body)), RemoteAddr: "127.0.0.1:1", Host: "h",
				Header: http.Header{"Content-Type": {"application/json"}}, Body: in,
			}
			w := &nowhere{header: http.Header{}}
			for b.Loop() {
				in.Reset([]byte(test.body))
				g.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkTypedStream is the surface's share of one report of a stream and its answer.
func BenchmarkTypedStream(b *testing.B) {
	b.ReportAllocs()
	g := newHandler(b, &services{})
	body, out := io.Pipe()
	answered := make(chan struct{}, 1)
	r := &http.Request{
		Method: "POST", URL: &url.URL{Path: "/kvpilot/v1/reservations:track"}, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, RemoteAddr: "127.0.0.1:1", Host: "h",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.ServeHTTP(&flushed{nowhere{header: http.Header{}}, answered}, r)
	}()
	line := []byte(`{"sequence":"7","renew":{"reservation_id":"r"}}` + "\n")
	for b.Loop() {
		if _, err := out.Write(line); err != nil {
			b.Fatal(err)
		}
		<-answered
	}
	_ = out.Close()
	<-ended
}

// flushed reports each flush.
type flushed struct {
	nowhere
	done chan struct{}
}

func (w *flushed) FlushError() error {
	w.done <- struct{}{}
	return nil
}
