package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// transport opens and keeps connections without goroutines, which read straight from the socket into the caller's buffer.
type transport struct {
	cfg     atomic.Pointer[Config]
	metrics *metrics
	opens   dialFunc
	plain   bool // sockets

	mu    sync.RWMutex
	hosts map[hostKey]*host // guarded by mu
	ended bool              // guarded by mu
}

// keepAlivePeriod is how soon TCP notices that a silent host is gone.
const keepAlivePeriod = 15 * time.Second

// hostKey identifies a host: its base URL and the identity that the router has there.
type hostKey struct {
	base string
	peer *tlspeer.Identity
}

// host is one base URL and the idle connections to it.
type host struct {
	address string // to dial
	name    string // of the Host header
	prefix  string // of every path
	server  string // the name without the port, for TLS
	secure  bool
	peer    *tlspeer.Identity

	mu   sync.Mutex
	idle []*conn // guarded by mu; the last one was used last
	gone bool    // guarded by mu: pruned, keeps nothing any more
}

// dialFunc opens a connection, within a time of its own.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func newTransport(cfg *Config, p Params, m *metrics) *transport {
	dial := p.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAlivePeriod, Interval: keepAlivePeriod, Count: 3}}).DialContext
	}
	l := &transport{metrics: m, opens: dial, plain: p.PlainSockets, hosts: map[hostKey]*host{}}
	l.cfg.Store(cfg)
	return l
}

// update takes new settings, for exchanges that begin from now on.
func (l *transport) update(cfg *Config) { l.cfg.Store(cfg) }

// host finds or makes the host of a replica.
func (l *transport) host(r *replica.Replica) (*host, error) {
	base := hostKey{r.URL, r.TLS}
	l.mu.RLock()
	h, ended := l.hosts[base], l.ended
	l.mu.RUnlock()
	switch {
	case ended:
		return nil, errShut
	case h != nil:
		return h, nil
	}
	h, err := parseHost(r.URL)
	if err != nil {
		return nil, err
	}
	h.peer = r.TLS
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.hosts[base]; known != nil {
		return known, nil
	}
	l.hosts[base] = h
	return h, nil
}

var errShut = errors.New("the client is closed")

func parseHost(base string) (*host, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("replica URL: %w", err)
	}
	h := &host{name: u.Host, server: u.Hostname(), prefix: u.EscapedPath()}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
		h.secure = true
	default:
		return nil, fmt.Errorf("replica URL: scheme must be http or https, not %q", u.Scheme)
	}
	if u.Hostname() == "" || !http1.ValidTarget(h.name) || !http1.ValidTarget(h.prefix) {
		return nil, errors.New("replica URL: no valid host")
	}
	h.address = net.JoinHostPort(u.Hostname(), port)
	return h, nil
}

// do sends a request and reads the head of the response.
func (l *transport) do(ctx context.Context, t Target, r *Request) (*Response, error) {
	h, err := l.host(t.Replica)
	if err != nil {
		return nil, failed(ctx, t.Replica.ID, phaseDial, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, failed(ctx, t.Replica.ID, phaseDial, err)
	}
	cfg := l.cfg.Load()
	var c *conn
	if !r.Once {
		c = h.take(time.Now(), cfg.IdleTimeout)
	}
	for {
		reused := c != nil
		if !reused {
			if c, err = l.dialTimed(ctx, h, cfg, r.Times); err != nil {
				return nil, failed(ctx, t.Replica.ID, phaseDial, err)
			}
		}
		if r.Times != nil {
			r.Times.Began = time.Now()
		}
		resp, err := l.exchange(ctx, c, cfg, t, r)
		if r.Times != nil && err == nil {
			r.Times.Head = time.Now()
		}
		if err == nil {
			return resp, nil
		}
		// The replica may have closed the connection just before the request came: then
		// nothing of a response was read, and a fresh connection settles it.
		if !reused || !err.unanswered || ctx.Err() != nil || !r.again() {
			return nil, failed(ctx, t.Replica.ID, err.phase, err.cause)
		}
		l.metrics.Redials.Add(ctx, 1)
		c = nil
	}
}

// dialTimed opens a connection and records when, if t is not nil.
func (l *transport) dialTimed(ctx context.Context, h *host, cfg *Config, t *Times) (*conn, error) {
	if t == nil {
		return l.dial(ctx, h, cfg)
	}
	t.DialBegan = time.Now()
	c, err := l.dial(ctx, h, cfg)
	if err == nil {
		t.Dialed = time.Now()
	}
	return c, err
}

// dial opens a connection, on a goroutine of its own: package net goes so deep that the stack of
// the request's would be doubled, and stay so for as long as its stream lasts.
func (l *transport) dial(ctx context.Context, h *host, cfg *Config) (c *conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = l.connect(ctx, h, cfg)
	}()
	<-done // ctx and the timeouts of connect bound it
	return c, err
}

// connect opens a connection.
func (l *transport) connect(ctx context.Context, h *host, cfg *Config) (*conn, error) {
	l.metrics.Dials.Add(ctx, 1)
	limit, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	base, err := l.opens(limit, "tcp", h.address)
	cancel()
	if err != nil {
		return nil, overdue(ctx, err)
	}
	c := newConn(h, base, l.plain)
	if !h.secure {
		return c, nil
	}
	limit, cancel = context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	secured, err := h.peer.Handshake(limit, c.base, h.server)
	if err != nil {
		c.shut()
		return nil, overdue(ctx, err)
	}
	c.stream = secured
	return c, nil
}

// overdue is the error of a dial or handshake, in which DialTimeout is not taken for the end of ctx: some report it as the end of their own context.
func overdue(ctx context.Context, err error) error {
	if ctx.Err() == nil && err == context.DeadlineExceeded { //nolint:errorlint // timeouts of package net pass for it
		return os.ErrDeadlineExceeded
	}
	return err
}

// take returns the idle connection that was used last, if that is not longer ago than idle and it
// still lives; nil when there is none. Connections that are idle for longer are left to others and to prune.
func (h *host) take(now time.Time, idle time.Duration) *conn {
	for {
		h.mu.Lock()
		n := len(h.idle)
		if n == 0 || now.Sub(h.idle[n-1].idleSince) >= idle {
			h.mu.Unlock()
			return nil
		}
		c := h.idle[n-1]
		h.idle[n-1] = nil
		h.idle = h.idle[:n-1]
		h.mu.Unlock()
		if c.alive() {
			return c
		}
		c.shut()
	}
}

// give keeps a connection for the next request.
func (h *host) give(c *conn, now time.Time, most int) {
	c.idleSince = now
	h.mu.Lock()
	keep := !h.gone && len(h.idle) < most
	if keep {
		h.idle = append(h.idle, c)
	}
	h.mu.Unlock()
	if !keep {
		c.shut()
	}
}

// prune closes connections that have been idle for too long. A host without connections is dropped, so that replicas that
// are gone leave nothing behind.
func (l *transport) prune(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for base, h := range l.hosts {
		if h.prune(now, l.cfg.Load().IdleTimeout) {
			delete(l.hosts, base)
		}
	}
}

// prune closes connections that were idle for too long, and reports whether nothing is left.
func (h *host) prune(now time.Time, idleTimeout time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	stale := 0 // the idle ones are in the order of their last use
	for stale < len(h.idle) && now.Sub(h.idle[stale].idleSince) >= idleTimeout {
		h.idle[stale].shut()
		stale++
	}
	h.idle = append(h.idle[:0], h.idle[stale:]...)
	clear(h.idle[len(h.idle):cap(h.idle)])
	h.gone = len(h.idle) == 0
	return h.gone
}

// shut closes all idle connections, and every other one when its request ends.
func (l *transport) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for base, h := range l.hosts {
		h.mu.Lock()
		h.gone = true
		for _, c := range h.idle {
			c.shut()
		}
		h.idle = nil
		h.mu.Unlock()
		delete(l.hosts, base)
	}
}

// exchangeError is why an exchange failed.
type exchangeError struct {
	phase phase
	cause error
	// unanswered: the connection ended before the first byte of a response.
	unanswered bool
}

// exchange sends the request on c and reads the head of the response. On an error c is closed.
func (l *transport) exchange(ctx context.Context, c *conn, cfg *Config, t Target, r *Request) (*Response, *exchangeError) {
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.shut)
	}
	a := &responseBody{ctx: ctx, transport: l, cfg: cfg, conn: c, stop: stop, id: t.Replica.ID}
	sent := l.send(ctx, c, t, r)
	var source *sourceError
	if errors.As(sent, &source) {
		a.abort()
		return nil, &exchangeError{phase: phaseWrite, cause: sent}
	}
	if sent != nil { // the replica may have refused before all of it was read
		c.limit(earlyResponseWait)
	} else {
		c.limit(cfg.ResponseHeaderTimeout)
	}
	err := a.readHead(r.Method)
	if err == nil && sent != nil && a.resp.Status < 400 {
		err = &exchangeError{phase: phaseWrite, cause: sent}
	}
	if err != nil {
		if sent != nil {
			err.phase, err.cause = phaseWrite, sent
		}
		a.abort()
		return nil, err
	}
	a.broken = a.broken || sent != nil
	return &a.resp, nil
}

// earlyResponseWait is how long a response is waited for after a request could not be written.
const earlyResponseWait = 200 * time.Millisecond

// send writes the request.
func (l *transport) send(ctx context.Context, c *conn, t Target, r *Request) error {
	head := getBuffer(smallBuffer)
	defer putBuffer(head)
	return c.write(appendHead(ctx, head.b[:0], c.host, t, r), r)
}

// responseBody is one response as it is read.
type responseBody struct {
	resp      Response
	ctx       context.Context //nolint:containedctx // it is the life of the response, as in http.Request
	transport *transport
	cfg       *Config // as the exchange began with
	conn      *conn   // nil once it was released or closed
	stop      func() bool
	id        replica.ID

	buf   *buffer // nil while nothing is read
	large bool    // further reads use a large buffer
	r, w  int     // buf.b[r:w] was read from the connection and not yet decoded
	try   func(fd uintptr) bool
	got   struct { // the result of try
		n   int
		err error
	}
	frame http1.Body
	ended error
	// broken: the connection is not fit for another request.
	broken bool
}
