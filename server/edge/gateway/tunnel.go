package gateway

import (
	"bufio"
	"net"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
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

// tunnel is a connection that has become a WebSocket.
type tunnel struct {
	stall time.Duration // how long the client may read nothing while bytes are written

	mu      sync.Mutex
	conn    net.Conn // guarded by mu; nil before take
	ended   bool     // guarded by mu
	stopped bool     // guarded by mu: by the router, which is stopping

	early *bufio.Reader // bytes that came with the request; used by the reading goroutine, nil when it is empty
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
