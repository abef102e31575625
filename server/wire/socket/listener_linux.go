package socket

import (
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Listener returns a listener of TCP connections that keep the processor while they write. Other
// connections of l are passed on as they are.
func Listener(l net.Listener) net.Listener { return &listener{Listener: l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c, nil //nolint:nilerr // it works as any connection does
	}
	quick := &conn{TCPConn: tcp, raw: raw}
	quick.try = quick.tryWrite
	return quick, nil
}

// mostAtOnce bounds a write that keeps the processor: it takes tens of microseconds.
const mostAtOnce = 64 << 10

// conn is a TCP connection that keeps the processor during small writes.
type conn struct {
	*net.TCPConn
	raw syscall.RawConn
	try func(fd uintptr) bool

	// mu is never waited for: a writer that finds it held writes as package net does, which waits for
	// its turn.
	mu    sync.Mutex
	left  []byte        // guarded by mu
	errno syscall.Errno // guarded by mu
}

// Write implements net.Conn. While the socket's buffer is full it waits as package net does, up to
// the deadline.
func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 || len(b) > mostAtOnce || !c.mu.TryLock() {
		return c.TCPConn.Write(b)
	}
	defer c.mu.Unlock()
	c.left, c.errno = b, 0
	err := c.raw.Write(c.try)
	if err == nil && c.errno != 0 {
		err = &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("write", c.errno)}
	}
	n := len(b) - len(c.left)
	c.left = nil
	return n, err
}

// tryWrite writes what the socket takes, and is false when that was not all.
func (c *conn) tryWrite(fd uintptr) bool {
	for len(c.left) > 0 {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&c.left[0])), uintptr(len(c.left)))
		switch errno {
		case 0:
			c.left = c.left[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			c.errno = errno
			return true
		}
	}
	return true
}
