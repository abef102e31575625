package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// tunnels are the connections that have become WebSockets: net/http knows nothing of them any more.
type tunnels struct {
	mu      sync.Mutex
	open    map[*tunnel]struct{} // guarded by mu
	leaving bool                 // guarded by mu: no more are opened
	none    chan struct{}        // guarded by mu; closed when none is left; nil without a waiter
}

// add registers a connection, unless the router is stopping.
func (t *tunnels) add(one *tunnel) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving {
		return false
	}
	if t.open == nil {
		t.open = map[*tunnel]struct{}{}
	}
	t.open[one] = struct{}{}
	return true
}

// drop removes a connection when its handler has ended.
func (t *tunnels) drop(one *tunnel) {
	one.Close() //nolint:errcheck // the connection is not used again
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, one)
	if len(t.open) == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// leave accepts no more and returns a channel that is closed when none is left.
func (t *tunnels) leave() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving = true
	none := make(chan struct{})
	if len(t.open) == 0 {
		close(none)
		return none
	}
	t.none = none
	return none
}

// cut closes the open tunnels.
func (t *tunnels) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for one := range t.open {
		one.cut()
	}
}

// Leave rejects new WebSockets, waits for the open ones until ctx ends, and then closes them. It returns when the
// last handler has ended; an error means that some were closed by it. It must be called once only.
func (g *Gateway) Leave(ctx context.Context) error {
	none := g.tunnels.leave()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
	}
	g.tunnels.cut()
	<-none // their connections are closed
	return ctx.Err()
}

// upgrade is a client that waits for its connection to become a WebSocket.
type upgrade struct{ rq *request }

var _ router.Upgrade = upgrade{}

// takeUpgrade offers the client's connection to the handler, when that is what the request asks for. The handler rejects any
// other.
func (g *Gateway) takeUpgrade(rq *request, r *http.Request) error {
	if hasBody(r) {
		return apierror.New(apierror.InvalidBody, "the handshake of a WebSocket has no body", nil)
	}
	if r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor > 0 &&
		lists(r.Header["Connection"], "upgrade") && lists(r.Header["Upgrade"], "websocket") && r.Header.Get("Sec-Websocket-Key") != "" {
		rq.call.Upgrade = upgrade{rq}
	}
	return nil
}

// lists reports whether a header with lists as values names a word.
func lists(values []string, word string) bool {
	for _, line := range values {
		for one := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(one), word) {
				return true
			}
		}
	}
	return false
}

// Switch implements router.Upgrade.
func (u upgrade) Switch(header http.Header) (io.ReadWriteCloser, error) {
	rq := u.rq
	one := &tunnel{stall: rq.g.StallTimeout()}
	if !rq.g.tunnels.add(one) {
		return nil, apierror.New(apierror.ShuttingDown, "the router is stopping", nil, apierror.WithRetryAfter(time.Second))
	}
	conn, buffered, err := rq.control.Hijack()
	if err != nil {
		rq.g.tunnels.drop(one)
		return nil, err
	}
	rq.tunnel, rq.status = one, http.StatusSwitchingProtocols
	one.take(conn, buffered.Reader)
	for name, values := range rq.w.Header() { // of the gateway's own: the request's id, and what pages of other origins may read
		if header[name] == nil {
			header[name] = values
		}
	}
	for name := range header {
		if hopByHop(name) {
			delete(header, name)
		}
	}
	var head strings.Builder
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
	_ = header.Write(&head) // a Builder takes everything
	head.WriteString("\r\n")
	if _, err := io.WriteString(one, head.String()); err != nil {
		one.Close() //nolint:errcheck // the client disconnected
		return nil, err
	}
	return one, nil
}

// tunnel is a connection that has become a WebSocket.
type tunnel struct {
	stall time.Duration // how long the client may take nothing of what is written

	mu      sync.Mutex
	conn    net.Conn // guarded by mu; nil before take
	ended   bool     // guarded by mu
	stopped bool     // guarded by mu: by the router, which is stopping

	early *bufio.Reader // what came with the request; used by the reading goroutine, nil when it is empty
}

// take begins the tunnel; net/http's deadlines end here.
func (t *tunnel) take(conn net.Conn, early *bufio.Reader) {
	_ = conn.SetDeadline(time.Time{}) // fails on closed connections only, as the next read will
	if early.Buffered() > 0 {
		t.early = early
	}
	t.mu.Lock()
	t.conn = conn
	ended := t.ended
	t.mu.Unlock()
	if ended {
		conn.Close()
	}
}

// Read implements io.Reader.
func (t *tunnel) Read(p []byte) (int, error) {
	if t.early != nil {
		n, err := t.early.Read(p[:min(len(p), t.early.Buffered())])
		if t.early.Buffered() == 0 {
			t.early = nil
		}
		return n, err
	}
	n, err := t.conn.Read(p)
	if err != nil && t.wasStopped() {
		err = apierror.New(apierror.ShuttingDown, "the router is stopping", err)
	}
	return n, err
}

// Write implements io.Writer. A client that takes nothing for the stall timeout loses its connection.
func (t *tunnel) Write(p []byte) (int, error) {
	if t.stall > 0 {
		_ = t.conn.SetWriteDeadline(time.Now().Add(t.stall)) // as in take
	}
	return t.conn.Write(p)
}

// Close implements io.Closer. It may be called at any time, more than once.
func (t *tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	t.ended = true
	if t.conn == nil {
		return nil
	}
	return t.conn.Close()
}

// cut ends it because the router is stopping.
func (t *tunnel) cut() {
	t.mu.Lock()
	t.stopped = !t.ended
	t.mu.Unlock()
	t.Close() //nolint:errcheck // the connection is not used again
}

func (t *tunnel) wasStopped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stopped
}
