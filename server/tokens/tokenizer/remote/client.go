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

	"go.opentelemetry.io/otel/propagation"

	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// engineIdle is how long vLLM keeps an idle connection; ours must be closed sooner.
const engineIdle = 5 * time.Second

// maxErrorBody bounds what is kept of an error's body.
const maxErrorBody = 64 << 10

// newTransport makes the connections to the engines.
func newTransport(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConns:        cfg.MaxEndpoints * cfg.Concurrency,
		MaxIdleConnsPerHost: cfg.Concurrency,
		IdleConnTimeout:     engineIdle * 4 / 5,
		DisableCompression:  true,
		ReadBufferSize:      32 << 10,
		WriteBufferSize:     32 << 10,
		TLSHandshakeTimeout: 2 * time.Second,
	}
}

// client speaks HTTP with endpoints.
type client struct {
	cfg  Config
	http http.RoundTripper
	bufs sync.Pool // of *bytes.Buffer
}

func newClient(cfg Config, rt http.RoundTripper) *client {
	return &client{cfg: cfg, http: rt, bufs: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
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
	req, err := http.NewRequestWithContext(tlspeer.With(ctx, e.peer), http.MethodPost, e.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, &Fault{Kind: KindConnect, Cause: err}
	}
	req.Header["Content-Type"] = []string{"application/json"}
	// Tokenizing has no effect, so a POST that met a connection closed while idle may be sent
	// again; an empty value has net/http leave the header out.
	req.Header["Idempotency-Key"] = nil
	if e.key != "" {
		req.Header["Authorization"] = []string{"Bearer " + e.key}
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return 0, nil, nil, transportFault(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing is left to learn from closing
	buf, err := c.read(resp)
	if err != nil {
		var f *Fault
		if errors.As(err, &f) {
			return 0, nil, nil, err
		}
		return 0, nil, nil, transportFault(ctx, fmt.Errorf("read the answer: %w", err))
	}
	return resp.StatusCode, resp.Header, buf, nil
}

func (c *client) read(resp *http.Response) (*bytes.Buffer, error) {
	limit := c.cfg.MaxAnswerBytes
	if resp.StatusCode != http.StatusOK {
		limit = maxErrorBody
	}
	if resp.StatusCode == http.StatusOK && resp.ContentLength > limit {
		return nil, &Fault{Kind: KindTooLarge}
	}
	buf, _ := c.bufs.Get().(*bytes.Buffer)
	buf.Reset()
	if resp.ContentLength > 0 {
		buf.Grow(int(min(resp.ContentLength, limit)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		c.release(buf)
		return nil, err
	case n > limit && resp.StatusCode == http.StatusOK:
		c.release(buf)
		return nil, &Fault{Kind: KindTooLarge}
	}
	return buf, nil
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
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return &Fault{Kind: KindTimeout, Cause: err}
	}
	return &Fault{Kind: KindConnect, Cause: err}
}

// classify decides whether an error status is the client's fault or the replica's; model is the one that was asked about.
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
