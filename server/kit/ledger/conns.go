package ledger

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connections are the open connections of all listeners.
type connections struct {
	mu   sync.Mutex
	open map[*Conn]struct{} // guarded by mu
	free *sync.Cond         // of mu: one was closed or became idle
	// waiting is how many listeners wait at their bound.
	waiting atomic.Int32
}

// Conn is a counted connection.
type Conn struct {
	net.Conn
	listener *Listener
	account  Account
	owner    atomic.Pointer[Account] // of the sender of the first request or call; nil before
	address  address
	// read and written are the bytes so far, used is when the connection became idle, in nanoseconds.
	read, written, used atomic.Int64
	// busy counts the requests and calls under way.
	busy atomic.Int32
	// nameless counts the calls that need no credentials.
	nameless atomic.Int32
	proven   atomic.Bool
	closed   atomic.Bool
}

// address is the remote address of a Conn, and leads back to it.
type address struct {
	net.Addr
	conn *Conn
}

// RemoteAddr implements net.Conn. ConnAt finds the Conn of it.
func (c *Conn) RemoteAddr() net.Addr { return &c.address }

// ConnAt returns the Conn with this remote address, nil when the address is not one of a Conn.
func ConnAt(a net.Addr) *Conn {
	if own, ok := a.(*address); ok {
		return own.conn
	}
	return nil
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.read.Add(int64(n))
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.written.Add(int64(n))
	}
	return n, err
}

// Closed reports whether the connection was closed at this end.
func (c *Conn) Closed() bool { return c != nil && c.closed.Load() }

// Sent is how many bytes have left so far.
func (c *Conn) Sent() int64 { return c.written.Load() }

// Received is how many bytes have come so far.
func (c *Conn) Received() int64 { return c.read.Load() }

// Begin notes that a request or call begins.
func (c *Conn) Begin() {
	if c != nil {
		c.busy.Add(1)
	}
}

// End notes the end of a request that Begin noted.
func (c *Conn) End() {
	if c == nil || c.busy.Add(-1) > 0 {
		return
	}
	c.used.Store(time.Now().UnixNano())
	if s := &c.listener.ledger.conns; s.waiting.Load() > 0 {
		s.mu.Lock()   // so that none is between its look and its wait
		s.mu.Unlock() //nolint:staticcheck // the lock alone is wanted
		s.free.Broadcast()
	}
}

// TakeNameless counts a call that needs no credentials, and reports false when the connection has most of them already.
func (c *Conn) TakeNameless(most int32) bool {
	if c == nil || c.nameless.Add(1) <= most {
		return true
	}
	c.nameless.Add(-1)
	return false
}

// GiveNameless counts one less.
func (c *Conn) GiveNameless() {
	if c != nil {
		c.nameless.Add(-1)
	}
}

// Prove notes that the peer has shown who it is. Where connections last as long as their peer (ListenerConfig.Lasting), it is not
// closed for others any more.
func (c *Conn) Prove() {
	if c != nil && !c.proven.Load() && c.proven.CompareAndSwap(false, true) && c.listener.config.Lasting {
		c.busy.Add(1)
	}
}

// ProveFor is Prove for the first request or call of a sender, who is charged with the connection from then on. It returns a *Full when the
// sender has no share left.
func (c *Conn) ProveFor(s Sender) error {
	if c == nil || c.proven.Load() || !c.proven.CompareAndSwap(false, true) {
		return nil
	}
	s.Conn = c
	owner := new(Account)
	c.listener.ledger.Open(owner, s)
	if err := owner.Take(Connection, c.listener.config.Cost); err != nil {
		c.proven.Store(false)
		return err
	}
	c.owner.Store(owner)
	c.account.Close()
	if c.closed.Load() {
		owner.Close()
	}
	return nil
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	if c.closed.CompareAndSwap(false, true) {
		l := c.listener.ledger
		l.conns.mu.Lock()
		delete(l.conns.open, c)
		c.listener.count--
		l.conns.mu.Unlock()
		l.conns.free.Broadcast()
		c.account.Close()
		if owner := c.owner.Load(); owner != nil {
			owner.Close()
		}
	}
	return err
}

type connKey struct{}

// WithConn attaches a connection to the context of its requests; c may be one that a *Conn is inside of, as with TLS.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	if own := Unwrap(c); own != nil {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// ConnFrom returns the connection of WithConn, nil without one.
func ConnFrom(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// Unwrap finds the Conn inside of a connection, nil when there is none.
func Unwrap(c net.Conn) *Conn {
	for {
		switch inner := c.(type) {
		case *Conn:
			return inner
		case interface{ NetConn() net.Conn }:
			c = inner.NetConn()
		default:
			return nil
		}
	}
}

// ListenerConfig describes the connections of a listener.
type ListenerConfig struct {
	// Max bounds them.
	Max int
	// Cost is one's part of the pot of places.
	Cost int64
	// Lasting: a connection whose peer has shown who it is stays, though no request is under way.
	Lasting bool
}

// Listener counts the connections of a listener. When they, the connections of all listeners, or the address's share of places are at
// their bound, it closes the idle ones of the largest holder first: connections without a request yet, the oldest first, then connections
// whose last request is longest ago. While all are busy, new ones wait.
type Listener struct {
	net.Listener
	ledger *Ledger
	config ListenerConfig
	count  int // guarded by connections.mu
	done   atomic.Bool
}

// Listener returns l with counted connections.
func (l *Ledger) Listener(inner net.Listener, c ListenerConfig) *Listener {
	return &Listener{Listener: inner, ledger: l, config: c}
}

// Accept implements net.Listener.
func (d *Listener) Accept() (net.Conn, error) {
	for {
		inner, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.await(); d.done.Load() {
			_ = inner.Close() // it was not served
			return nil, net.ErrClosed
		}
		if c := d.admit(inner); c != nil {
			return c, nil
		}
	}
}

// Close implements net.Listener.
func (d *Listener) Close() error {
	d.done.Store(true)
	err := d.Listener.Close()
	d.ledger.conns.free.Broadcast()
	return err
}

// await waits until there is room for a connection that has come, and makes room where it can.
func (d *Listener) await() {
	s := &d.ledger.conns
	s.mu.Lock()
	defer s.mu.Unlock()
	for d.fullLocked() && !d.done.Load() {
		victims := d.idleLocked(nil)
		if len(victims) == 0 {
			s.waiting.Add(1)
			s.free.Wait()
			s.waiting.Add(-1)
			continue
		}
		s.mu.Unlock()
		d.closeAll(victims)
		s.mu.Lock()
	}
}

func (d *Listener) fullLocked() bool {
	files := d.ledger.config.Files
	return d.count >= d.config.Max || files > 0 && len(d.ledger.conns.open) >= files
}

// admit counts a connection, and closes it when its address has no share left and nothing idle to close.
func (d *Listener) admit(inner net.Conn) *Conn {
	c := &Conn{Conn: inner, listener: d}
	c.address = address{inner.RemoteAddr(), c}
	c.used.Store(time.Now().UnixNano())
	host, _, err := net.SplitHostPort(inner.RemoteAddr().String())
	if err != nil {
		host = ""
	}
	l := d.ledger
	l.Open(&c.account, Sender{Open: true, Unknown: true, Address: host})
	for c.account.take(Connection, d.config.Cost) != nil {
		l.conns.mu.Lock()
		victims := d.idleLocked(c)
		l.conns.mu.Unlock()
		if len(victims) == 0 {
			l.metrics.refuse(&Full{Connection, "address"})
			_ = inner.Close() // the client sees that
			return nil
		}
		d.closeAll(victims)
	}
	l.conns.mu.Lock()
	d.count++
	l.conns.open[c] = struct{}{}
	l.conns.mu.Unlock()
	return c
}

func (d *Listener) closeAll(victims []*Conn) {
	for _, v := range victims {
		d.ledger.metrics.Evicted.Add(Connection)
		_ = v.Close() // it is given up
	}
}

// idleLocked chooses connections to close: a sixty-fourth of the idle ones, so that a flood does not look through all for each. asking is
// the connection whose address has no share left; nil: the listener, or the process, is at its bound.
func (d *Listener) idleLocked(asking *Conn) []*Conn {
	s := &d.ledger.conns
	ownBound := asking == nil && d.count >= d.config.Max
	var best []*Conn
	most := 1 + len(s.open)/64
	for c := range s.open {
		switch {
		case c.busy.Load() > 0 || c.closed.Load():
			continue
		case ownBound && c.listener != d:
			continue
		case asking != nil && c.account.of[0].party != asking.account.of[0].party:
			continue
		}
		best = insert(best, c, most)
	}
	return best
}

// insert keeps the connections that are to be closed first.
func insert(list []*Conn, c *Conn, most int) []*Conn {
	at := len(list)
	for at > 0 && before(c, list[at-1]) {
		at--
	}
	if at == most {
		return list
	}
	list = append(list, nil)
	copy(list[at+1:], list[at:])
	list[at] = c
	return list[:min(len(list), most)]
}

// before reports whether a is closed before b.
func before(a, b *Conn) bool {
	if pa, pb := a.proven.Load(), b.proven.Load(); pa != pb {
		return pb
	}
	if ha, hb := a.account.of[0].held[placesPot].Load(), b.account.of[0].held[placesPot].Load(); ha != hb {
		return ha > hb
	}
	return a.used.Load() < b.used.Load()
}
