package enginesim

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// maxBody bounds a request body.
const maxBody = 256 << 20

// call is one request on its way through a handler.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	faults Faults
	record *Record
	book   *recordBox // its lock guards record
	body   []byte
}

type handler func(l *life, c *call)

// surface is the handlers of each path, by method.
type surface map[string]map[string]handler

// add serves the paths where the version and the front end have them.
func (s surface) add(has bool, method string, h handler, paths ...string) {
	for _, path := range paths {
		if has && s[path] == nil {
			s[path] = map[string]handler{}
		}
		if has {
			s[path][method] = h
		}
	}
}

// surfaceOf is the set of routes of an engine with these features.
func surfaceOf(f *features, cfg *Config) surface {
	s, python, sleeps := surface{}, !cfg.Rust, cfg.SleepMode
	pooled := func(serve func(*pooler, *call)) handler {
		return func(l *life, c *call) { serve(&pooler{&l.dialect, l}, c) }
	}
	byTokens := func(serve func(tokenRoutes, *call)) handler {
		return func(l *life, c *call) { serve(tokenRoutes{l}, c) }
	}
	sleeping := func(serve func(sleepRoutes, *call)) handler {
		return func(l *life, c *call) { serve(sleepRoutes{l}, c) }
	}
	s.add(true, "GET", (*life).health, "/health")
	s.add(true, "GET", (*life).versionReply, "/version")
	s.add(true, "GET", (*life).metrics, "/metrics")
	s.add(true, "GET", (*life).serverLoad, "/load")
	s.add(true, "GET", (*life).models, "/v1/models")
	s.add(true, "POST", (*life).resetPrefixCache, "/reset_prefix_cache")
	s.add(cfg.AdapterUpdates, "POST", func(l *life, c *call) { adapterRoutes{l}.load(c) }, "/v1/load_lora_adapter")
	s.add(cfg.AdapterUpdates, "POST", func(l *life, c *call) { adapterRoutes{l}.unload(c) }, "/v1/unload_lora_adapter")
	s.add(python && sleeps, "POST", sleeping(sleepRoutes.fallAsleep), "/sleep")
	s.add(python && sleeps, "POST", sleeping(sleepRoutes.wakeUp), "/wake_up")
	s.add(python && sleeps, "GET", sleeping(sleepRoutes.isSleeping), "/is_sleeping")
	s.add(true, "POST", (*life).chat, "/v1/chat/completions")
	s.add(true, "POST", (*life).completion, "/v1/completions")
	s.add(true, "POST", (*life).tokenize, "/tokenize")
	s.add(true, "POST", (*life).detokenize, "/detokenize")
	s.add(python, "GET", (*life).health, "/ping")
	s.add(python, "POST", (*life).health, "/ping")
	s.add(python, "POST", pooled((*pooler).embeddings), "/v1/embeddings")
	s.add(python, "POST", pooled((*pooler).pooling), "/pooling")
	s.add(python, "POST", pooled((*pooler).classify), "/classify")
	s.add(python, "POST", pooled((*pooler).score), "/score", "/v1/score")
	s.add(python, "POST", pooled((*pooler).rerank), "/rerank", "/v1/rerank", "/v2/rerank")
	s.add(python, "POST", (*life).transcribe, "/v1/audio/transcriptions", "/v1/audio/translations")
	s.add(python && f.has(responses), "POST", (*life).responsesCreate, "/v1/responses")
	s.add(python && f.has(messages), "POST", (*life).messagesCreate, "/v1/messages")
	s.add(python && f.has(messages), "POST", (*life).messagesCount, "/v1/messages/count_tokens")
	s.add(python && f.has(render), "POST", (*life).renderChat, "/v1/chat/completions/render")
	s.add(python && f.has(derender), "POST", byTokens(tokenRoutes.generate), "/inference/v1/generate")
	s.add(python && f.has(derender), "POST", byTokens(tokenRoutes.derender), "/v1/chat/completions/derender")
	s.add(python && f.has(render), "POST", (*life).renderCompletion, "/v1/completions/render")
	s.add(python && f.has(renderAll), "POST", (*life).renderMessages, "/v1/messages/render")
	s.add(python && f.has(renderAll), "POST", (*life).renderResponses, "/v1/responses/render")
	s.add(python && f.has(realtime), "GET", (*life).realtime, "/v1/realtime")
	s.add(python && f.has(eventSources), "GET", (*life).eventSources, "/kv_event_sources")
	return s
}

// route finds the handlers of a path, nil for unknown paths.
func (l *life) route(path string) map[string]handler {
	id, stored := strings.CutPrefix(path, "/v1/responses/")
	if methods := l.surface[path]; methods != nil || !stored || l.surface["/v1/responses"] == nil {
		return methods
	}
	if id, ok := strings.CutSuffix(id, "/cancel"); ok {
		return map[string]handler{"POST": func(l *life, c *call) { l.responsesCancel(c, id) }}
	}
	return map[string]handler{"GET": func(l *life, c *call) { l.responsesGet(c, id) }}
}

// serve is the whole HTTP surface.
func (l *life) serve(w http.ResponseWriter, r *http.Request) {
	if what, ok := strings.CutPrefix(r.URL.Path, "/sim/kv/"); ok && r.Method == http.MethodPost {
		answerPeer(l, &call{w: w, r: r, record: &Record{}, book: &l.records}, what)
		return
	}
	if r.URL.Path == "/query" && r.Method == http.MethodGet && l.cfg.Transfer.Connector == mooncake && l.cfg.Transfer.KVRole != consumer {
		answerBootstrap(l, &call{w: w, r: r, record: &Record{}, book: &l.records})
		return
	}
	if strings.HasPrefix(r.URL.Path, "/sim/") {
		l.admin(w, r, l.state)
		return
	}
	w.Header().Set("Server", "uvicorn")
	c := &call{w: w, r: r, faults: l.faults.request(r), record: l.newRecord(r), book: &l.records}
	l.records.add(c.record)
	if l.early(r.Context(), c) {
		return
	}
	if c.faults.HalfBody || c.faults.WrongJSON {
		spoiled(c, func() { l.dispatch(c) })
		return
	}
	l.dispatch(c)
}

func (e *Engine) newRecord(r *http.Request) *Record {
	h := r.Header
	return &Record{
		At: time.Now(), Method: r.Method, Path: r.URL.Path, RequestID: h.Get("X-Request-Id"),
		Traceparent: h.Get("Traceparent"), Tracestate: h.Get("Tracestate"),
		Session: h.Get("X-Session-Id"), Rank: h.Get("X-Data-Parallel-Rank"), Life: e.lives.Load(),
	}
}

// early applies the faults that come before any work and reports whether that was the answer.
func (d *dialect) early(ctx context.Context, c *call) bool {
	f := c.faults
	if f.Slow > 0 && !sleep.For(ctx, time.Duration(f.Slow)) {
		return true
	}
	switch {
	case f.Cut:
		panic(http.ErrAbortHandler)
	case f.Hang:
		// The server only notices that a client leaves once the body is read.
		_, _ = io.Copy(io.Discard, c.r.Body) // the request has no answer anyway
		<-ctx.Done()
		return true
	case f.Scaling:
		c.reply(http.StatusServiceUnavailable, map[string]string{"error": "The model is currently scaling. Please try again later."})
		return true
	case f.Status > 0 || f.Body != "":
		if f.RetryAfter > 0 {
			c.w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
		if f.Body != "" {
			c.send(cmp.Or(f.Status, http.StatusOK), "application/json", []byte(f.Body))
			return true
		}
		d.fail(c, apiError{Status: f.Status, Message: http.StatusText(f.Status), Type: errorType(f.Status)})
		return true
	}
	return false
}

func (l *life) dispatch(c *call) {
	methods := l.route(c.r.URL.Path)
	if methods == nil {
		c.reply(http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	handle, ok := methods[c.r.Method]
	if !ok {
		c.reply(http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	if key := l.cfg.APIKey; key != "" && guarded(c.r.URL.Path) && c.r.Header.Get("Authorization") != "Bearer "+key {
		c.reply(http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
		return
	}
	if id := c.record.RequestID; id != "" && l.cfg.RequestIDHeader {
		c.w.Header().Set("X-Request-Id", id)
	}
	handle(l, c)
}

func guarded(path string) bool {
	return strings.HasPrefix(path, "/v1") || strings.HasPrefix(path, "/v2")
}

// read takes the JSON body into v; false: the error has been answered.
func (d *dialect) read(c *call, v any) bool {
	kind, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		d.fail(c, badRequest("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", ""))
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if err != nil {
		return false // the client left, or sends more than any request holds
	}
	c.body = body
	if !utf8.Valid(body) {
		e := badRequest("There was an error parsing the body", "")
		e.Type = "Bad Request"
		d.fail(c, e)
		return false
	}
	body = bytes.TrimPrefix(body, []byte("\uFEFF")) // as Python's json does with bytes
	if err := json.Unmarshal(body, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		d.fail(c, validationError(err))
		return false
	}
	return true
}

// reply sends v as JSON.
func (c *call) reply(status int, v any) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err) // our own types always marshal
	}
	c.send(status, "application/json", b)
}

func (c *call) send(status int, kind string, body []byte) {
	c.book.update(func() { c.record.Status = status })
	if kind != "" {
		c.w.Header().Set("Content-Type", kind)
	}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body) // a client that left needs no answer
}
