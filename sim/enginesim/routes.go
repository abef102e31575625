package enginesim

import (
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

// route finds the handler of a path; methods is nil for unknown paths.
func (l *life) route(path string) (methods map[string]handler) {
	f := l.features
	if !l.cfg.Rust {
		switch path {
		case "/ping":
			return map[string]handler{"GET": (*life).health, "POST": (*life).health}
		case "/v1/responses":
			if f.responses {
				return post((*life).responsesCreate)
			}
		case "/v1/messages":
			if f.messages {
				return post((*life).messagesCreate)
			}
		case "/v1/messages/count_tokens":
			if f.messages {
				return post((*life).messagesCount)
			}
		case "/v1/embeddings":
			return post((*life).embeddings)
		case "/pooling":
			return post((*life).pooling)
		case "/classify":
			return post((*life).classify)
		case "/score", "/v1/score":
			return post((*life).score)
		case "/rerank", "/v1/rerank", "/v2/rerank":
			return post((*life).rerank)
		case "/v1/audio/transcriptions", "/v1/audio/translations":
			return post((*life).transcribe)
		}
		if methods = f.renders(path); methods != nil {
			return methods
		}
		if path == "/v1/realtime" && f.realtime {
			return get((*life).realtime)
		}
		if id, ok := strings.CutPrefix(path, "/v1/responses/"); ok && f.responses {
			if id, ok := strings.CutSuffix(id, "/cancel"); ok {
				return post(func(l *life, c *call) { l.responsesCancel(c, id) })
			}
			return get(func(l *life, c *call) { l.responsesGet(c, id) })
		}
	}
	switch path {
	case "/v1/chat/completions":
		return post((*life).chat)
	case "/v1/completions":
		return post((*life).completion)
	case "/tokenize":
		return post((*life).tokenize)
	case "/detokenize":
		return post((*life).detokenize)
	case "/v1/models":
		return get((*life).models)
	case "/health":
		return get((*life).health)
	case "/metrics":
		return get((*life).metrics)
	case "/load":
		return get((*life).serverLoad)
	case "/kv_event_sources":
		if f.eventSources && !l.cfg.Rust {
			return get((*life).eventSources)
		}
	case "/version":
		return get((*life).versionReply)
	case "/reset_prefix_cache":
		return post((*life).resetPrefixCache)
	}
	return nil
}

// renders finds the handlers of the routes that give a prompt's token ids.
func (f *features) renders(path string) map[string]handler {
	switch {
	case path == "/v1/chat/completions/render" && f.render:
		return post((*life).renderChat)
	case path == "/v1/completions/render" && f.render:
		return post((*life).renderCompletion)
	case path == "/v1/messages/render" && f.renderAll:
		return post((*life).renderMessages)
	case path == "/v1/responses/render" && f.renderAll:
		return post((*life).renderResponses)
	}
	return nil
}

func post(h handler) map[string]handler { return map[string]handler{"POST": h} }
func get(h handler) map[string]handler  { return map[string]handler{"GET": h} }

// serve is the whole HTTP surface.
func (l *life) serve(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/sim/") {
		l.admin(w, r)
		return
	}
	w.Header().Set("Server", "uvicorn")
	c := &call{w: w, r: r, faults: l.faults.request(r.URL.Path), record: l.newRecord(r), book: &l.records}
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

func (l *life) newRecord(r *http.Request) *Record {
	h := r.Header
	return &Record{
		At: time.Now(), Method: r.Method, Path: r.URL.Path, RequestID: h.Get("X-Request-Id"),
		Traceparent: h.Get("Traceparent"), Tracestate: h.Get("Tracestate"),
		Session: h.Get("X-Session-Id"), Rank: h.Get("X-Data-Parallel-Rank"), Life: l.lives.Load(),
	}
}

// early applies the faults that come before any work and reports whether that was the answer.
func (l *life) early(ctx context.Context, c *call) bool {
	f := c.faults
	if f.Slow > 0 && !sleep(ctx, time.Duration(f.Slow)) {
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
		l.fail(c, apiError{Status: f.Status, Message: http.StatusText(f.Status), Type: errorType(f.Status)})
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
func (l *life) read(c *call, v any) bool {
	kind, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		l.fail(c, badRequest("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", ""))
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
		l.fail(c, e)
		return false
	}
	if err := json.Unmarshal(body, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		l.fail(c, validationError(err))
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

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
