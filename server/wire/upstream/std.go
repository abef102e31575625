package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// std is the transport made of net/http's.
type std struct {
	dial dialFunc
	now  atomic.Pointer[stdWays]
}

// stdWays are the transports of one state of the settings.
type stdWays struct {
	cfg   *Config
	inner *tlspeer.Transports
	fresh *tlspeer.Transports // opens a connection for each request
}

func newStd(cfg *Config, dial dialFunc) *std {
	s := &std{dial: dial}
	s.now.Store(s.ways(cfg))
	return s
}

// update implements transport. Requests in flight keep the transport that they began with.
func (s *std) update(cfg *Config) { s.now.Swap(s.ways(cfg)).inner.CloseIdleConnections() }

func (s *std) ways(cfg *Config) *stdWays {
	inner := netTransport(cfg, s.dial)
	fresh := inner.Clone()
	fresh.DisableKeepAlives = true
	return &stdWays{cfg: cfg, inner: tlspeer.NewTransports(inner), fresh: tlspeer.NewTransports(fresh)}
}

// netTransport is net/http's transport under the settings.
func netTransport(cfg *Config, dial dialFunc) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: keepAlivePeriod}).DialContext
	}
	return &http.Transport{
		DialContext:            dial,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		ResponseHeaderTimeout:  cfg.ResponseHeaderTimeout,
		IdleConnTimeout:        cfg.IdleTimeout,
		MaxIdleConnsPerHost:    cfg.MaxIdlePerReplica,
		MaxResponseHeaderBytes: int64(cfg.MaxHeaderBytes),
		DisableCompression:     true,
	}
}

// keepAlivePeriod is how soon TCP notices that a silent host is gone.
const keepAlivePeriod = 15 * time.Second

func (s *std) do(ctx context.Context, t Target, r *Request) (*Response, error) {
	url := t.Replica.URL + r.Path
	if r.Query != "" {
		url += "?" + r.Query
	}
	ways := s.now.Load()
	ctx, cancel := context.WithCancel(tlspeer.With(ctx, t.Replica.TLS))
	req, err := http.NewRequestWithContext(ctx, r.Method, url, nil)
	if err != nil { // the replica's URL was checked when it was registered
		cancel()
		return nil, &UnsendableError{"path"}
	}
	if r.Times != nil {
		req = req.WithContext(httptrace.WithClientTrace(ctx, timed(r.Times)))
	}
	gate := s.setBody(req, r)
	forwarded(ctx, t, r, req.Header.Add)
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", userAgent)
	}
	through := ways.inner
	if r.Once {
		through = ways.fresh
	}
	resp, err := through.RoundTrip(req)
	if err != nil {
		gate.shut()
		failure := failed(ctx, t.Replica.ID, phaseOf(err), err)
		cancel()
		return nil, failure
	}
	if r.Times != nil {
		r.Times.Head = time.Now()
	}
	for name := range resp.Header {
		if withheldFromClient(name) {
			delete(resp.Header, name)
		}
	}
	return &Response{Status: resp.StatusCode, Header: resp.Header, ContentLength: resp.ContentLength,
		body: &stdBody{ctx: ctx, cancel: cancel, target: t, body: resp.Body, stall: ways.cfg.StallTimeout}}, nil
}

// timed notes the moments of an exchange. RoundTrip may return before a dial that it no longer needs
// has ended, so only a connection that is used counts.
func timed(t *Times) *httptrace.ClientTrace {
	asked := time.Now()
	return &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		t.Began = time.Now()
		if !c.Reused {
			t.DialBegan, t.Dialed = asked, t.Began
		}
	}}
}

// setBody hands over the body; the gate stands before its stream.
func (s *std) setBody(req *http.Request, r *Request) *sourceGate {
	gate := &sourceGate{from: r.Stream}
	req.ContentLength = r.size()
	switch {
	case r.Stream != nil:
		req.Body = io.NopCloser(io.MultiReader(bytes.NewReader(r.Body), gate))
	case len(r.Body) > 0:
		req.Body = io.NopCloser(bytes.NewReader(r.Body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil }
	default:
		req.Body = http.NoBody
	}
	return gate
}

func phaseOf(err error) phase {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return phaseDial
	}
	return phaseHead
}

func (s *std) prune(time.Time) {} // net/http does it by itself

func (s *std) shut() { s.now.Load().inner.CloseIdleConnections() }

// stdBody reads a response of net/http.
type stdBody struct {
	ctx    context.Context //nolint:containedctx // it is the life of the response, as in http.Request
	cancel context.CancelFunc
	target Target
	body   io.ReadCloser
	buf    []byte
	stall  time.Duration
	ended  error
	closed atomic.Bool
}

// stdBuffer is the size of a read.
const stdBuffer = 8 << 10

func (a *stdBody) next() ([]byte, error) {
	if a.ended != nil {
		return nil, a.ended
	}
	if a.buf == nil {
		a.buf = make([]byte, stdBuffer)
	}
	var stalled atomic.Bool
	if a.stall > 0 {
		timer := time.AfterFunc(a.stall, func() { stalled.Store(true); a.cancel() })
		defer timer.Stop()
	}
	for {
		n, err := a.body.Read(a.buf)
		if err != nil {
			a.end(err, stalled.Load())
		}
		if n > 0 {
			return a.buf[:n], nil
		}
		if err != nil {
			return nil, a.ended
		}
	}
}

func (a *stdBody) end(err error, stalled bool) {
	switch {
	case err == io.EOF: //nolint:errorlint // the plain io.EOF is the end; a wrapped one is a response that was cut off
		a.ended = io.EOF
	case stalled:
		a.ended = &requestError{replica: a.target.Replica.ID, phase: phaseBody, err: errStalled}
	default:
		a.ended = failed(a.ctx, a.target.Replica.ID, phaseBody, err)
	}
}

func (a *stdBody) close() {
	if a.closed.CompareAndSwap(false, true) {
		a.cancel()
		a.body.Close() //nolint:errcheck // nothing can be done about it
	}
}

// errStalled ends a response of which nothing came for too long.
var errStalled = errors.New("no bytes within the stall timeout")

// userAgent names kvpilot to replicas.
const userAgent = "kvpilot"

// sourceGate marks the errors of a request's own stream. net/http may continue to read a body after
// the request has failed: once the gate is shut, the stream is the caller's again.
type sourceGate struct {
	mu   sync.Mutex
	from io.Reader // guarded by mu; nil once shut
}

// Read implements io.Reader.
func (s *sourceGate) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		return 0, errClosed
	}
	n, err := s.from.Read(b)
	if err != nil && err != io.EOF {
		err = &sourceError{err}
	}
	return n, err
}

// shut ends the reading, after the read that is under way.
func (s *sourceGate) shut() {
	s.mu.Lock()
	s.from = nil
	s.mu.Unlock()
}
