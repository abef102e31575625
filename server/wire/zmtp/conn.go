package zmtp

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Conn is one connection after its handshake. One goroutine may receive while others send.
type Conn struct {
	nc     net.Conn
	params Params
	peer   SocketType
	minor  byte

	// Reading: one goroutine.
	in       []byte
	r, w     int
	heard    time.Time // when the last byte arrived; zero during the handshake
	asked    bool      // a PING went out since then
	deadline time.Time // of Recv; zero is none
	command  []byte

	mu  sync.Mutex
	out []byte // guarded by mu
}

// Peer is the socket type at the other end.
func (c *Conn) Peer() SocketType { return c.peer }

// RemoteAddr is the address at the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close ends the connection; a Recv in progress returns an error. It may be called often and
// from any goroutine.
func (c *Conn) Close() { hangUp(c.nc) }

// hangUp closes a connection that is not used again; nothing can be done about a failure.
func hangUp(c io.Closer) { _ = c.Close() }

// SetDeadline bounds the following calls of Recv; zero removes the bound. Only the goroutine that
// calls Recv may call it.
func (c *Conn) SetDeadline(t time.Time) {
	c.deadline = t
	if t.IsZero() {
		_ = c.nc.SetReadDeadline(t) // fails only on a closed connection, which Recv will report
	}
}

// Recv reads the next message into m. Subscriptions and cancellations from the peer are
// delivered as in ZMTP 3.0: one frame, 1 or 0 followed by the topic. After any error the
// connection is of no use.
func (c *Conn) Recv(m *Message) error {
	m.reset()
	for {
		flags, size, err := c.frameHeader()
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			delivered, err := c.handleCommand(m, size)
			if err != nil || delivered {
				return err
			}
			continue
		}
		if size > uint64(c.params.MaxMessage-len(m.buf)) || len(m.ends) == maxFrames {
			return errTooLarge
		}
		if err := c.readBody(m, int(size)); err != nil {
			return err
		}
		m.ends = append(m.ends, len(m.buf))
		if flags&flagMore == 0 {
			m.seal()
			return nil
		}
	}
}

// Send writes one multipart message.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = AppendMessage(c.out[:0], frames...)
	return c.flush()
}

// WriteEncoded writes messages that AppendMessage has encoded.
func (c *Conn) WriteEncoded(wire []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(wire)
}

// Subscribe asks a PUB peer for the messages with a first frame that starts with topic.
func (c *Conn) Subscribe(topic string) error { return c.subscription(1, "SUBSCRIBE", topic) }

func (c *Conn) subscription(mark byte, command, topic string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.minor >= 1 {
		c.out = appendCommand(c.out[:0], command, []byte(topic))
	} else {
		c.out = AppendMessage(c.out[:0], append([]byte{mark}, topic...))
	}
	return c.flush()
}

// Ping sends a PING; Recv handles the peer's answer.
func (c *Conn) Ping() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A time-to-live of zero: libzmq would otherwise hang up while only it is sending.
	c.out = appendCommand(c.out[:0], "PING", []byte{0, 0})
	return c.flush()
}

// flush writes c.out. The caller holds c.mu.
func (c *Conn) flush() error {
	err := c.write(c.out)
	if cap(c.out) > 4*writeBuffer {
		c.out = nil // one large message must not stay in memory for the connection's life
	}
	return err
}

func (c *Conn) write(b []byte) error {
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.params.WriteTimeout)); err != nil {
		return err
	}
	_, err := c.nc.Write(b)
	return err
}

// handleCommand reads a command of the given size and acts on it; delivered says that m now
// holds a subscription.
func (c *Conn) handleCommand(m *Message, size uint64) (delivered bool, err error) {
	if size > maxCommand {
		return false, errTooLarge
	}
	if len(m.ends) > 0 {
		return false, breach("command inside a message")
	}
	if uint64(cap(c.command)) < size {
		c.command = make([]byte, size)
	}
	body := c.command[:size]
	if err := c.readFull(body); err != nil {
		return false, err
	}
	name, data, err := splitCommand(body)
	if err != nil {
		return false, err
	}
	switch name {
	case "PING":
		return false, c.pong(data)
	case "SUBSCRIBE", "CANCEL":
		if len(data) > maxTopic {
			return false, errTooLarge
		}
		mark := byte(0)
		if name == "SUBSCRIBE" {
			mark = 1
		}
		m.buf = append(append(m.buf, mark), data...)
		m.ends = append(m.ends, len(m.buf))
		m.seal()
		return true, nil
	case "ERROR":
		return false, breach("peer reports an error: %q", errorReason(data))
	}
	return false, nil // PONG, and commands of later versions
}

func (c *Conn) pong(ping []byte) error {
	if len(ping) < 2 {
		return breach("malformed PING")
	}
	context := ping[2:min(len(ping), 18)]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendCommand(c.out[:0], "PONG", context)
	return c.flush()
}

// frameHeader reads a frame's flags and size.
func (c *Conn) frameHeader() (flags byte, size uint64, err error) {
	if err := c.need(2); err != nil {
		return 0, 0, err
	}
	flags = c.in[c.r]
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, breach("reserved bits in frame flags %#x", flags)
	}
	if flags&flagLong == 0 {
		size = uint64(c.in[c.r+1])
		c.r += 2
		return flags, size, nil
	}
	if err := c.need(9); err != nil {
		return 0, 0, err
	}
	size = binary.BigEndian.Uint64(c.in[c.r+1:])
	c.r += 9
	return flags, size, nil
}

// readBody appends size bytes from the wire to m's buffer. Memory grows as bytes arrive, not
// as they are announced.
func (c *Conn) readBody(m *Message, size int) error {
	for size > 0 {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return unexpected(err)
			}
		}
		n := min(size, c.w-c.r)
		if cap(m.buf)-len(m.buf) < n {
			grown := make([]byte, len(m.buf), max(2*cap(m.buf), len(m.buf)+min(size, growStep)))
			copy(grown, m.buf)
			m.buf = grown
		}
		m.buf = append(m.buf, c.in[c.r:c.r+n]...)
		c.r += n
		size -= n
	}
	return nil
}

func (c *Conn) readFull(dst []byte) error {
	for len(dst) > 0 {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return unexpected(err)
			}
		}
		n := copy(dst, c.in[c.r:c.w])
		c.r += n
		dst = dst[n:]
	}
	return nil
}

// need makes n bytes lie together in the read buffer.
func (c *Conn) need(n int) error {
	for c.w-c.r < n {
		started := c.w > c.r
		if err := c.fill(); err != nil {
			if started {
				return unexpected(err)
			}
			return err
		}
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill reads more bytes from the network and pings a quiet peer.
func (c *Conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.in) {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	for {
		until, beats := c.readUntil()
		if !until.IsZero() {
			if err := c.nc.SetReadDeadline(until); err != nil {
				return err
			}
		}
		n, err := c.nc.Read(c.in[c.w:])
		if n > 0 {
			c.w += n
			c.heard, c.asked = time.Now(), false
			return nil
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case !beats, !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return err
		case c.asked:
			return errSilent
		default:
			if err := c.Ping(); err != nil {
				return err
			}
			c.asked = true
		}
	}
}

// readUntil is the moment at which the next read must end (zero: never), and whether
// heartbeats are on: ZMTP 3.0 has none, and peers that speak it hang up on a PING. During the handshake the connection's own deadline is in force.
func (c *Conn) readUntil() (until time.Time, beats bool) {
	if c.params.Heartbeat <= 0 || c.heard.IsZero() || c.minor == 0 {
		return c.deadline, false
	}
	wait := c.params.Heartbeat
	if c.asked {
		wait = c.params.Silence - c.params.Heartbeat
	}
	until = time.Now().Add(wait)
	if !c.deadline.IsZero() && c.deadline.Before(until) {
		until = c.deadline
	}
	return until, true
}
