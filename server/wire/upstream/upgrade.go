package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// handshakeTimeout bounds the wait for the response to an upgrade: engines accept it before they compute anything.
const handshakeTimeout = 10 * time.Second

// Tunnel is a connection to a replica that has become a WebSocket. One goroutine may read while another one writes.
type Tunnel struct {
	// Header is the replica's, without headers about the hop.
	Header http.Header

	io.ReadWriteCloser
}

// Upgrade asks the replica to make a WebSocket of a fresh connection. It returns the tunnel, or the response of a replica that
// did not; the errors are the same as Do's. When ctx ends before the response, the request is aborted; a tunnel outlives it.
func (c *Client) Upgrade(ctx context.Context, t Target, r *Request) (*Tunnel, *Response, error) {
	if err := checkRequest(t, r); err != nil {
		return nil, nil, err
	}
	began := time.Now()
	tunnel, resp, err := c.upgrades.do(ctx, t, r)
	c.metrics.answered(Classify(resp, err), time.Since(began))
	if tunnel != nil {
		resp = nil
	}
	return tunnel, resp, err
}

// upgrades is the transport of handshakes, made of net/http's.
type upgrades struct{ inner *tlspeer.Transports }

func newUpgrades(cfg *Config, dial dialFunc) *upgrades {
	inner := netTransport(cfg, dial)
	inner.DisableKeepAlives = true
	plain := inner.DialContext
	inner.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := plain(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return patient{conn}, nil
	}
	inner.ResponseHeaderTimeout = handshakeTimeout
	return &upgrades{inner: tlspeer.NewTransports(inner)}
}

// patient is a connection that bounds each write: a replica that reads nothing must not hold the client's
// bytes forever.
type patient struct{ net.Conn }

// Write implements io.Writer.
func (p patient) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on closed connections only, as the write will
	return p.Conn.Write(b)
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

func phaseOf(err error) phase {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return phaseDial
	}
	return phaseHead
}

// do sends the handshake. With a tunnel, the response says no more than its status.
func (u *upgrades) do(ctx context.Context, t Target, r *Request) (*Tunnel, *Response, error) {
	url := t.Replica.URL + r.Path
	if r.Query != "" {
		url += "?" + r.Query
	}
	ctx, cancel := context.WithCancel(tlspeer.With(ctx, t.Replica.TLS))
	req, err := http.NewRequestWithContext(ctx, r.Method, url, nil)
	if err != nil { // the replica's URL was checked when it was registered
		cancel()
		return nil, nil, &UnsendableError{"path"}
	}
	if r.Times != nil {
		req = req.WithContext(httptrace.WithClientTrace(ctx, timed(r.Times)))
	}
	forwarded(ctx, t, r, req.Header.Add)
	req.Header.Set("User-Agent", userAgent)
	handshake(req.Header, r.Header)
	resp, err := u.inner.RoundTrip(req)
	if err != nil {
		failure := failed(ctx, t.Replica.ID, phaseOf(err), err)
		cancel()
		return nil, nil, failure
	}
	if r.Times != nil {
		r.Times.Head = time.Now()
	}
	switches := isWebSocket(resp)
	for name := range resp.Header {
		if withheldFromClient(name) {
			delete(resp.Header, name)
		}
	}
	response := &Response{Status: resp.StatusCode, Header: resp.Header, ContentLength: resp.ContentLength}
	both, writable := resp.Body.(io.ReadWriteCloser)
	switch {
	case switches && writable:
		return &Tunnel{Header: resp.Header, ReadWriteCloser: &released{both, cancel}}, response, nil
	case resp.StatusCode < 400: // neither a WebSocket nor a refusal
		resp.Body.Close()
		cancel()
		return nil, nil, &requestError{replica: t.Replica.ID, phase: phaseHead, err: http1.Malformed("no answer to a WebSocket's handshake")}
	}
	response.body = &refusal{ctx: ctx, cancel: cancel, target: t, body: resp.Body}
	return nil, response, nil
}

// released ends the request's context with the tunnel.
type released struct {
	io.ReadWriteCloser
	cancel context.CancelFunc
}

// Close implements io.Closer. It may be called more than once.
func (r *released) Close() error {
	r.cancel()
	return r.ReadWriteCloser.Close()
}

// handshake puts in the headers of a WebSocket's handshake, which the client and the replica settle between them. A browser
// has no other place for an API key than a protocol's name; keys are for kvpilot.
func handshake(to, from http.Header) {
	to.Set("Connection", "Upgrade")
	to.Set("Upgrade", "websocket")
	for _, name := range []string{"Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions"} {
		for _, value := range from[name] {
			if http1.ValidValue(value) {
				to[name] = append(to[name], value)
			}
		}
	}
	var protocols []string
	for _, line := range from["Sec-Websocket-Protocol"] {
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one != "" && http1.ValidValue(one) && !strings.HasPrefix(one, "openai-insecure-api-key.") {
				protocols = append(protocols, one)
			}
		}
	}
	if len(protocols) > 0 {
		to.Set("Sec-Websocket-Protocol", strings.Join(protocols, ", "))
	}
}

// isWebSocket reports whether a replica has switched, and to the requested protocol.
func isWebSocket(resp *http.Response) bool {
	return resp.StatusCode == http.StatusSwitchingProtocols && strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") &&
		http1.Nominated(resp.Header["Connection"], "upgrade")
}

// refusal reads the response of a replica that did not upgrade.
type refusal struct {
	ctx    context.Context //nolint:containedctx // it is the life of the response, as in http.Request
	cancel context.CancelFunc
	target Target
	body   io.ReadCloser
	buf    []byte
	ended  error
	closed atomic.Bool
}

// refusalBuffer is the size of a read.
const refusalBuffer = 8 << 10

func (a *refusal) next() ([]byte, error) {
	if a.ended != nil {
		return nil, a.ended
	}
	if a.buf == nil {
		a.buf = make([]byte, refusalBuffer)
	}
	var stalled atomic.Bool
	timer := time.AfterFunc(handshakeTimeout, func() { stalled.Store(true); a.cancel() })
	defer timer.Stop()
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

func (a *refusal) end(err error, stalled bool) {
	switch {
	case atEnd(err):
		a.ended = io.EOF
	case stalled:
		a.ended = &requestError{replica: a.target.Replica.ID, phase: phaseBody, err: errStalled}
	default:
		a.ended = failed(a.ctx, a.target.Replica.ID, phaseBody, err)
	}
}

func (a *refusal) close() {
	if a.closed.CompareAndSwap(false, true) {
		a.cancel()
		a.body.Close()
	}
}
