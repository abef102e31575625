package enginesim

import (
	"context"
	"errors"
	"net"
	"sync"
)

// relay accepts from one listener for the whole time and hands connections to the present
// engine life; between lives it closes them at once, as a host without the process would.
type relay struct {
	ln    net.Listener
	begun chan struct{} // closed when the first life opens; connections wait until then

	mu  sync.Mutex
	now *port // guarded by mu; nil between lives
}

func newRelay(ln net.Listener) *relay { return &relay{ln: ln, begun: make(chan struct{})} }

// port is the listener that one life sees.
type port struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var errClosed = errors.New("the simulated engine's port is closed")

// run accepts until ctx ends.
func (r *relay) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.ln.Close() }) // a closed listener was wanted
	defer stop()
	defer r.ln.Close()
	select {
	case <-r.begun:
	case <-ctx.Done():
		return nil
	}
	for {
		conn, err := r.ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		r.mu.Lock()
		p := r.now
		r.mu.Unlock()
		if p == nil || !p.give(ctx, conn) {
			_ = conn.Close() // refused: no process is there
		}
	}
}

// open returns the listener of a new life.
func (r *relay) open() *port {
	p := &port{addr: r.ln.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	r.mu.Lock()
	r.now = p
	select {
	case <-r.begun:
	default:
		close(r.begun)
	}
	r.mu.Unlock()
	return p
}

func (p *port) give(ctx context.Context, c net.Conn) bool {
	select {
	case p.conns <- c:
		return true
	case <-p.closed:
	case <-ctx.Done():
	}
	return false
}

// Accept implements net.Listener.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, errClosed
	}
}

// Close implements net.Listener; the listener behind it stays open.
func (p *port) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr { return p.addr }
