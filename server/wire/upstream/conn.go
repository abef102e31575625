package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

// conn is one connection to a replica. It is used by one request at a time.
type conn struct {
	host   *host
	base   net.Conn // the TCP connection
	stream net.Conn // base, or TLS on it
	raw    syscall.RawConn
	plain  bool // reads and writes are known to the scheduler
	// idleSince is when the last request ended.
	idleSince time.Time
	limited   bool // a read deadline is set
}

func newConn(h *host, base net.Conn, plain bool) *conn {
	if !plain {
		base = socket.Quick(base)
	}
	c := &conn{host: h, base: base, stream: base, plain: plain}
	if sc, ok := base.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn() // without it, a closed connection is noticed when it is used
	}
	return c
}

// shut closes the connection. It may be called at any time, more than once.
func (c *conn) shut() {
	c.base.Close()
}

// limit bounds the reads that follow; zero lifts the bound.
func (c *conn) limit(d time.Duration) {
	switch {
	case d > 0:
		c.limited = true
		_ = c.stream.SetReadDeadline(time.Now().Add(d)) // fails on closed connections only, as the read will
	case c.limited:
		c.limited = false
		_ = c.stream.SetReadDeadline(time.Time{}) // as above
	}
}

// joinedBody is the size up to which a body goes into one write with the head. Above it the
// body is written from where it is.
const joinedBody = 16 << 10

// writeTimeout bounds each write that socket buffers may not take at once.
const writeTimeout = 30 * time.Second

// write sends the head and the body.
func (c *conn) write(head []byte, r *Request) error {
	if len(r.Body) <= joinedBody && r.Stream == nil {
		_, err := c.stream.Write(append(head, r.Body...))
		return err
	}
	defer func() { _ = c.stream.SetWriteDeadline(time.Time{}) }() // fails on closed connections only
	_ = c.stream.SetWriteDeadline(time.Now().Add(writeTimeout))   // as above
	if r.Stream == nil || r.StreamSize >= 0 {
		if _, err := socket.WriteBoth(c.stream, head, r.Body); err != nil {
			return err
		}
		if r.Stream == nil {
			return nil
		}
		return c.copyExactly(r.Stream, r.StreamSize)
	}
	if _, err := c.stream.Write(head); err != nil {
		return err
	}
	return c.copyChunked(r)
}

// copyExactly sends size bytes of the stream; with fewer, the request cannot be finished.
func (c *conn) copyExactly(from io.Reader, size int64) error {
	buf := getBuffer(largeBuffer)
	defer putBuffer(buf)
	for size > 0 {
		n, err := from.Read(buf.b[:min(int64(len(buf.b)), size)])
		if n > 0 {
			_ = c.stream.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on closed connections only
			if _, err := c.stream.Write(buf.b[:n]); err != nil {
				return err
			}
			size -= int64(n)
		}
		if err != nil && size > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return &sourceError{err}
		}
	}
	return nil
}

// copyChunked sends the body and the stream as chunks.
func (c *conn) copyChunked(r *Request) error {
	buf := getBuffer(largeBuffer)
	defer putBuffer(buf)
	chunk := func(data []byte) error {
		_ = c.stream.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on closed connections only
		frame := net.Buffers{append(strconv.AppendInt(nil, int64(len(data)), 16), "\r\n"...), data, []byte("\r\n")}
		_, err := frame.WriteTo(c.stream)
		return err
	}
	if len(r.Body) > 0 {
		if err := chunk(r.Body); err != nil {
			return err
		}
	}
	for {
		n, err := r.Stream.Read(buf.b)
		if n > 0 {
			if err := chunk(buf.b[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			_, err := c.stream.Write([]byte("0\r\n\r\n"))
			return err
		}
		if err != nil {
			return &sourceError{err}
		}
	}
}

// appendHead writes the request line and the headers.
func appendHead(ctx context.Context, b []byte, h *host, t Target, r *Request) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, h.prefix...)
	b = append(b, r.Path...)
	if r.Query != "" {
		b = append(append(b, '?'), r.Query...)
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, h.name...)
	b = append(b, "\r\nUser-Agent: "+userAgent+"\r\n"...)
	switch size := r.size(); {
	case size < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case size > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = append(b, "Content-Length: "...)
		b = append(strconv.AppendInt(b, size, 10), "\r\n"...)
	}
	forwarded(ctx, t, r, func(name, value string) {
		b = append(append(b, name...), ": "...)
		b = append(append(b, value...), "\r\n"...)
	})
	return append(b, "\r\n"...)
}

// userAgent names kvpilot to replicas.
const userAgent = "kvpilot"

// buffer is a piece of memory for one read.
type buffer struct{ b []byte }

// The sizes of buffers. Streams need small ones, for thousands may wait at once; a read that
// fills one up switches the response to a large one.
const (
	smallBuffer = 4 << 10
	largeBuffer = 32 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, smallBuffer)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, largeBuffer)} }}
)

func getBuffer(size int) *buffer {
	if size <= smallBuffer {
		return smallBuffers.Get().(*buffer) // the pool holds nothing else
	}
	return largeBuffers.Get().(*buffer) // the pool holds nothing else
}

func putBuffer(b *buffer) {
	switch len(b.b) {
	case smallBuffer:
		smallBuffers.Put(b)
	case largeBuffer:
		largeBuffers.Put(b)
	}
}
