package members

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/net/netutil"
)

const (
	// maxPacket is the largest packet of UDP.
	maxPacket = 64 << 10
	// packetQueue is how many packets may wait; the system drops further ones.
	packetQueue = 256
	// maxStreams and maxStream bound the resources of strangers: connections, and bytes received by each. A full exchange of a
	// thousand members has about half of that.
	maxStreams = 64
	maxStream  = 1 << 20
)

// transport carries memberlist's messages over sockets that its owner has opened. Incoming packets wait in the system's queues until
// receive is called. It ends when memberlist shuts down.
type transport struct {
	tcp       net.Listener
	udp       net.PacketConn
	advertise netip.AddrPort
	packets   chan *memberlist.Packet
	streams   chan net.Conn
	closed    chan struct{}
	wg        sync.WaitGroup

	mu   sync.Mutex
	open map[*boundedConn]struct{} // guarded by mu; nil after Shutdown
}

var _ memberlist.Transport = (*transport)(nil)

func newTransport(tcp net.Listener, udp net.PacketConn, advertise netip.AddrPort) *transport {
	if u, ok := udp.(*net.UDPConn); ok {
		_ = u.SetReadBuffer(1 << 20) // a smaller one loses some packets under load
	}
	return &transport{
		tcp: netutil.LimitListener(tcp, maxStreams), udp: udp, advertise: advertise,
		packets: make(chan *memberlist.Packet, packetQueue), streams: make(chan net.Conn), closed: make(chan struct{}),
		open: map[*boundedConn]struct{}{},
	}
}

// receive takes in packets and connections from now on. A router that is asked for its members before it knows itself would answer
// that the fleet is empty, so its owner calls this when memberlist is complete.
func (t *transport) receive() {
	t.wg.Go(t.receivePackets)
	t.wg.Go(t.accept)
}

func (t *transport) receivePackets() {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := t.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) || t.isClosed() {
			return
		}
		if err != nil || n == 0 {
			continue // of one packet: an ICMP answer to an earlier one, for example
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.closed:
			return
		}
	}
}

func (t *transport) accept() {
	for {
		conn, err := t.tcp.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !t.pause(100*time.Millisecond) {
				return
			}
			continue // out of files, for example
		}
		bounded := t.track(conn)
		if bounded == nil {
			return
		}
		select {
		case t.streams <- bounded:
		case <-t.closed:
			return // Shutdown closes it
		}
	}
}

// pause waits and reports whether the transport is still open.
func (t *transport) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.closed:
		return false
	}
}

func (t *transport) isClosed() bool {
	select {
	case <-t.closed:
		return true
	default:
		return false
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, address string) (time.Time, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	if t.isClosed() {
		return nil, net.ErrClosed
	}
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(context.Background(), "tcp", address) // memberlist has no context
	if err != nil {
		return nil, err
	}
	if bounded := t.track(conn); bounded != nil {
		return bounded, nil
	}
	return nil, net.ErrClosed
}

// Shutdown implements memberlist.Transport: it closes the sockets and all connections, and waits for its goroutines.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	if open == nil {
		return nil
	}
	close(t.closed)
	err := errors.Join(t.tcp.Close(), t.udp.Close())
	for conn := range open {
		conn.Conn.Close()
	}
	t.wg.Wait()
	return err
}

// track bounds a connection and remembers it until it is closed; it returns nil after Shutdown.
func (t *transport) track(conn net.Conn) *boundedConn {
	c := &boundedConn{Conn: conn, left: maxStream, transport: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		conn.Close()
		return nil
	}
	t.open[c] = struct{}{}
	return c
}

// boundedConn is a connection from which a bounded number of bytes can be read.
type boundedConn struct {
	net.Conn
	left      int // the reader's
	transport *transport
}

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.transport.mu.Lock()
	delete(c.transport.open, c)
	c.transport.mu.Unlock()
	return c.Conn.Close()
}
