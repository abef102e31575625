//go:build unix

package upstream

import (
	"io"
	"os"
	"syscall"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

// read reads once into the empty buffer. While nothing comes, the response holds no buffer, so
// that thousands of quiet streams cost little.
func (a *responseBody) read() (int, error) {
	c := a.conn
	if c.raw == nil || c.stream != c.base {
		return c.stream.Read(a.room())
	}
	if a.try == nil {
		a.try = a.tryRead
	}
	if err := c.raw.Read(a.try); err != nil {
		return 0, err
	}
	switch {
	case a.got.err != nil:
		return 0, os.NewSyscallError("read", a.got.err)
	case a.got.n == 0:
		return 0, io.EOF
	}
	return a.got.n, nil
}

// reader is how the socket is read.
func (c *conn) reader() func(fd uintptr, b []byte) (int, error) {
	if c.plain {
		return socket.PlainRead
	}
	return socket.Read
}

// tryRead reads from the socket, and is false when nothing is there yet.
func (a *responseBody) tryRead(fd uintptr) bool {
	n, err := a.conn.reader()(fd, a.room())
	if err == syscall.EAGAIN { //nolint:errorlint // a bare errno
		putBuffer(a.buf)
		a.buf = nil
		return false
	}
	a.got.n, a.got.err = n, err
	return true
}
