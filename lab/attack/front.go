package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// manners answer a request in place of the replica, or return false for the replica to answer it.
type manners func(w http.ResponseWriter, r *http.Request, body string) bool

// front is a proxy before a replica that remembers its requests and, while it is active, answers some requests by itself.
type front struct {
	url    string
	server *http.Server
	active atomic.Bool // the manners apply

	mu   sync.Mutex
	seen []seen // guarded by mu
}

// seen is a request that reached the replica.
type seen struct {
	at     time.Time
	path   string
	header http.Header
	body   string
}

func newFront(ctx context.Context, engine string, m manners) (*front, error) {
	to, err := url.Parse(engine)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{url: "http://" + l.Addr().String()}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	f.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.Method == http.MethodPost {
			f.remember(seen{time.Now(), r.RequestURI, r.Header, string(body)})
		}
		if f.active.Load() && m(w, r.WithContext(context.WithValue(r.Context(), engineKey{}, engine)), string(body)) {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = f.server.Serve(l) }() // it ends with close
	return f, nil
}

func (f *front) close() { f.server.Close() }

func (f *front) remember(s seen) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, s)
}

func (f *front) requests() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seen(nil), f.seen...)
}

// generates reports whether a request asks for tokens.
func generates(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/chat/completions") || strings.HasPrefix(r.URL.Path, "/v1/completions")
}

// tokenizes reports whether a request asks for token ids.
func tokenizes(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/tokenize") || strings.HasSuffix(r.URL.Path, "/render")
}

// honestFront passes everything.
func honestFront(http.ResponseWriter, *http.Request, string) bool { return false }

const poison = "a prompt that no engine survives"

// poisoned answers 500 to prompts with the poison.
func poisoned(w http.ResponseWriter, r *http.Request, body string) bool {
	if !generates(r) || !strings.Contains(body, poison) {
		return false
	}
	http.Error(w, `{"object":"error","message":"CUDA error: device-side assert triggered","type":"InternalServerError","code":500}`, http.StatusInternalServerError)
	return true
}

// unreadable answers 500 when the poison is to be tokenized.
func unreadable(w http.ResponseWriter, r *http.Request, body string) bool {
	if !tokenizes(r) || !strings.Contains(body, poison) {
		return false
	}
	http.Error(w, `{"object":"error","message":"template error","type":"InternalServerError","code":500}`, http.StatusInternalServerError)
	return true
}

const token = `data: {"id":"x","object":"chat.completion.chunk","model":"sim","choices":[{"index":0,"delta":{"content":"so "},"finish_reason":null}]}` + "\n\n"

// write sends a part of a stream at once; false: the client has left.
func write(w http.ResponseWriter, part string) bool {
	_, err := io.WriteString(w, part)
	return err == nil && http.NewResponseController(w).Flush() == nil
}

// eager sends a first token at once and then one each second.
func eager(w http.ResponseWriter, r *http.Request, body string) bool {
	if !generates(r) {
		return false
	}
	if !strings.Contains(body, `"stream":true`) {
		sleep.For(r.Context(), answerTokens*time.Second)
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"so"},"finish_reason":"length"}],"usage":{"prompt_tokens":400,"completion_tokens":%d,"total_tokens":424}}`, answerTokens)
		return true
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for n := range answerTokens {
		if n > 0 && !sleep.For(r.Context(), time.Second) || !write(w, token) {
			return true
		}
	}
	write(w, `data: {"id":"x","object":"chat.completion.chunk","model":"sim","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\ndata: [DONE]\n\n")
	return true
}

// empty ends each answer before its first token, and calls that a success.
func empty(w http.ResponseWriter, r *http.Request, body string) bool {
	if !generates(r) {
		return false
	}
	if strings.Contains(body, `"stream":true`) {
		w.Header().Set("Content-Type", "text/event-stream")
		write(w, "data: [DONE]\n\n")
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	write(w, `{"id":"x","object":"chat.completion","model":"sim","choices":[],"usage":{"prompt_tokens":400,"completion_tokens":0,"total_tokens":400}}`)
	return true
}

// boastful reports a usage that no request has.
func boastful(w http.ResponseWriter, r *http.Request, body string) bool {
	if !generates(r) || strings.Contains(body, `"stream":true`) || !strings.Contains(body, "question") {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	write(w, `{"id":"x","object":"chat.completion","model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"so"},"finish_reason":"length"}],"usage":{"prompt_tokens":1000000000000,"completion_tokens":1000000000000,"total_tokens":2000000000000}}`)
	return true
}

// slowed returns manners that pass a replica's first token when it comes and make the rest of each answer six times as long.
func slowed(w http.ResponseWriter, r *http.Request, body string) bool {
	engine, ok := r.Context().Value(engineKey{}).(string)
	if !ok || !generates(r) {
		return false
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, engine+r.URL.RequestURI(), strings.NewReader(body))
	if err != nil {
		return false
	}
	req.Header = r.Header.Clone()
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return true
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	if strings.Contains(body, `"stream":true`) {
		began = time.Time{} // the first token's arrival
	}
	for part := range arrivals(resp.Body) {
		if began.IsZero() {
			began = part.at
		}
		if !sleep.For(r.Context(), time.Until(began.Add(6*part.at.Sub(began)))) || !write(w, part.text) {
			return true
		}
	}
	return true
}

// engineKey is the key of the replica's URL in a request's context.
type engineKey struct{}

// arrival is a part of an answer, and when the replica sent it.
type arrival struct {
	at   time.Time
	text string
}

// arrivals reads an answer as it comes. Its channel has room for all parts, so that its goroutine ends with the answer.
func arrivals(from io.Reader) <-chan arrival {
	parts := make(chan arrival, 4*answerTokens)
	go func() {
		defer close(parts)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				parts <- arrival{time.Now(), string(buf[:n])}
			}
			if err != nil {
				return
			}
		}
	}()
	return parts
}
