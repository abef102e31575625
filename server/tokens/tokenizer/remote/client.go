package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/socket"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// engineIdle is how long vLLM keeps an idle connection; ours must be closed sooner.
const engineIdle = 5 * time.Second

// dialTimeout limits the time to open a connection, TLS included.
const dialTimeout = 2 * time.Second

// maxErrorBody bounds the kept part of an error's body.
const maxErrorBody = 64 << 10

// Sender sends one request to a replica; *upstream.Client is one. It returns once the head of the answer is there, and
// aborts the request when ctx ends.
type Sender interface {
	Do(ctx context.Context, t upstream.Target, r *upstream.Request) (*upstream.Response, error)
}

// connections are how the engines are reached: with the router's own HTTP client. Its metrics count clients' requests, so
// this one has none; a question's own are in this package.
func connections(cfg Config, plainSockets bool) *upstream.Client {
	u := upstream.DefaultConfig()
	u.DialTimeout = dialTimeout
	u.IdleTimeout = engineIdle * 4 / 5
	u.MaxIdlePerReplica = cfg.Concurrency
	return upstream.New(u, upstream.Params{PlainSockets: plainSockets})
}

// client speaks HTTP with endpoints.
type client struct {
	cfg  Config
	to   Sender
	bufs sync.Pool // of *bytes.Buffer
}

func newClient(cfg Config, to Sender) *client {
	return &client{cfg: cfg, to: to, bufs: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
}

// ask sends one question and reads its answer.
func (c *client) ask(ctx context.Context, e *endpoint, j *Job, render bool) (*Answer, error) {
	if j.NeedMedia && !render {
		return nil, &Fault{Kind: KindUnmappable, Cause: errors.New("/tokenize does not identify media")}
	}
	path, body, err := j.request(e, render)
	if err != nil {
		return nil, err
	}
	status, header, buf, err := c.post(ctx, e, path, body)
	if err != nil {
		return nil, err
	}
	defer c.release(buf)
	if status != http.StatusOK {
		err := classify(status, header, buf.Bytes(), j.Model)
		if refusal, ok := errors.AsType[*ClientFault](err); ok {
			refusal.Rendered = render
		}
		return nil, err
	}
	a, err := j.parse(buf.Bytes(), render)
	if err != nil {
		return nil, err
	}
	a.Replica = e.id
	return a, nil
}

// post sends body and returns the whole answer in a buffer that must be released.
func (c *client) post(ctx context.Context, e *endpoint, path string, body []byte) (int, http.Header, *bytes.Buffer, error) {
	// A POST that met a connection closed while idle is sent again, over a fresh one: the body is in memory.
	resp, err := c.to.Do(ctx, e.target, &upstream.Request{Method: http.MethodPost, Path: path, ContentType: "application/json", Body: body})
	if err != nil {
		return 0, nil, nil, transportFault(ctx, err)
	}
	defer resp.Close()
	buf, err := c.read(resp)
	if err != nil {
		var f *Fault
		if errors.As(err, &f) {
			return 0, nil, nil, err
		}
		return 0, nil, nil, transportFault(ctx, fmt.Errorf("read the answer: %w", err))
	}
	return resp.Status, resp.Header, buf, nil
}

// read reads the whole body. An error's is cut off at maxErrorBody.
func (c *client) read(resp *upstream.Response) (*bytes.Buffer, error) {
	limit := int64(c.cfg.MaxAnswerBytes)
	if resp.Status != http.StatusOK {
		limit = maxErrorBody
	} else if resp.ContentLength > limit {
		return nil, &Fault{Kind: KindTooLarge}
	}
	buf, _ := c.bufs.Get().(*bytes.Buffer)
	buf.Reset()
	if resp.ContentLength > 0 {
		buf.Grow(int(min(resp.ContentLength, limit)))
	}
	for {
		piece, err := resp.Next()
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			c.release(buf)
			return nil, err
		}
		if left := limit - int64(buf.Len()); int64(len(piece)) > left {
			if resp.Status == http.StatusOK {
				c.release(buf)
				return nil, &Fault{Kind: KindTooLarge}
			}
			buf.Write(piece[:left])
			return buf, nil
		}
		buf.Write(piece)
	}
}

// release returns a buffer; rare giants are left to the garbage collector.
func (c *client) release(buf *bytes.Buffer) {
	if buf.Cap() <= 4<<20 {
		c.bufs.Put(buf)
	}
}

// transportFault names a failure below HTTP.
func transportFault(ctx context.Context, err error) error {
	var netErr net.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return &Fault{Kind: KindCancelled, Cause: ctx.Err()}
	case socket.OwnFault(err), upstream.Classify(nil, err) == retry.Unsendable:
		return &Fault{Kind: KindOwn, Cause: err}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return &Fault{Kind: KindTimeout, Cause: err}
	}
	return &Fault{Kind: KindConnect, Cause: err}
}

// classify decides whether an error status is the client's fault or the replica's; model is the model of the question.
func classify(status int, header http.Header, body []byte, model string) error {
	switch {
	case status == http.StatusForbidden && bytes.Contains(body, []byte("--enable-scale-out")):
		return &Fault{Kind: KindUnsupported, Status: status} // vLLM 0.32 hides /render behind that flag
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &Fault{Kind: KindAuth, Status: status}
	case status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
		return &Fault{Kind: KindUnsupported, Status: status}
	case status == http.StatusNotFound && !namesModel(body, model):
		return &Fault{Kind: KindUnsupported, Status: status}
	case status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusUnprocessableEntity:
		kind := header.Get("Content-Type")
		if kind == "" {
			kind = "application/json"
		}
		return &ClientFault{Status: status, ContentType: kind, Body: bytes.Clone(body)}
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500:
		return &Fault{Kind: KindStatus, Status: status, RetryAfter: retryAfter(header.Get("Retry-After"))}
	}
	return malformed("status %d", status)
}

// namesModel reports whether a 404 is about the model and not about the route. Both may be of the type NotFoundError: the
// model's names it, or the field.
func namesModel(body []byte, model string) bool {
	if bytes.Contains(body, []byte("model_not_found")) || bytes.Contains(body, []byte(`"model"`)) {
		return true
	}
	name := bytes.Trim(rawjson.AppendString(nil, model), `"`)
	return len(name) > 0 && bytes.Contains(body, name) && bytes.Contains(body, []byte("model"))
}

// retryAfter reads seconds or a date; zero when there is neither.
func retryAfter(v string) time.Duration {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		if s <= 0 {
			return 0
		}
		return time.Duration(min(s, 3600) * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(0, time.Until(at)), time.Hour)
	}
	return 0
}
