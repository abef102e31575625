package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// mostAtOnce bounds the bytes that one system call moves while it keeps the processor: it takes tens of microseconds.
const mostAtOnce = 64 << 10

// conn is a TCP connection that keeps the processor during reads and writes.
type conn struct {
	*net.TCPConn
	raw syscall.RawConn
	in  reader
	out writer
}

// reader has the state of a read. Its mutex is never waited for: who finds it held reads as package net does, which waits for its turn.
type reader struct {
	sync.Mutex
	try  func(fd uintptr) bool
	into []byte // guarded by the mutex, as all below
	n    int
	err  error
}

// writer has the state of a write, as reader.
type writer struct {
	sync.Mutex
	try  func(fd uintptr) bool
	left [2][]byte // guarded by the mutex, as all below: the bytes to write, the second after the first
	err  error
}

// Read implements net.Conn. While nothing is there it waits as package net does, up to the deadline.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 || !c.in.TryLock() {
		return c.TCPConn.Read(b)
	}
	defer c.in.Unlock()
	c.in.into, c.in.err = b, nil
	err := c.raw.Read(c.in.try)
	c.in.into = nil
	switch {
	case err != nil:
		return 0, named("read", err)
	case c.in.err != nil:
		return 0, c.failed("read", c.in.err)
	case c.in.n == 0:
		return 0, io.EOF
	}
	return c.in.n, nil
}

// read reads the bytes that are there, and is false when there are none.
func (r *reader) read(fd uintptr) bool {
	r.n, r.err = Read(fd, r.into[:min(len(r.into), mostAtOnce)])
	return r.err != syscall.EAGAIN //nolint:errorlint // a bare errno
}

// Write implements net.Conn. While the socket's buffer is full it waits as package net does, up to
// the deadline.
func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 || !c.out.TryLock() {
		return c.TCPConn.Write(b)
	}
	defer c.out.Unlock()
	return c.writeLocked(b, nil)
}

// WriteBoth writes a and then b to a connection, with nothing of another writer between them and in as few segments as it can be. It returns
// how much of both was written.
func WriteBoth(to net.Conn, a, b []byte) (int, error) {
	if c, ok := to.(*conn); ok && c.out.TryLock() {
		defer c.out.Unlock()
		return c.writeLocked(a, b)
	}
	return writeBoth(to, a, b)
}

// writeLocked writes a and then b; its caller holds the writer's mutex.
func (c *conn) writeLocked(a, b []byte) (int, error) {
	w := &c.out
	w.left, w.err = [2][]byte{a, b}, nil
	err := c.raw.Write(w.try)
	switch {
	case err != nil:
		err = named("write", err)
	case w.err != nil:
		err = c.failed("write", w.err)
	}
	n := len(a) + len(b) - len(w.left[0]) - len(w.left[1])
	w.left = [2][]byte{}
	return n, err
}

// write writes as much as the socket takes, and is false when that was not all.
func (w *writer) write(fd uintptr) bool {
	for len(w.left[0])+len(w.left[1]) > 0 {
		n, errno := writeOnce(fd, w.left[0], w.left[1])
		switch errno {
		case 0:
			first := min(n, len(w.left[0]))
			w.left = [2][]byte{w.left[0][first:], w.left[1][n-first:]}
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			w.err = errno
			return true
		}
	}
	return true
}

// writeOnce makes one system call for at most mostAtOnce bytes of a and then b, which are not both empty.
func writeOnce(fd uintptr, a, b []byte) (int, syscall.Errno) {
	beforeWrite()
	a = a[:min(len(a), mostAtOnce)]
	b = b[:min(len(b), mostAtOnce-len(a))]
	if len(a) > 0 && len(b) > 0 {
		both := [2]syscall.Iovec{{Base: &a[0]}, {Base: &b[0]}}
		both[0].SetLen(len(a))
		both[1].SetLen(len(b))
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&both)), uintptr(len(both)))
		return int(n), errno
	}
	if len(a) == 0 {
		a = b
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&a[0])), uintptr(len(a)))
	return int(n), errno
}

// failed is the error of a system call as package net reports it.
func (c *conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, err)}
}

// named gives an error of the waiting for the socket the name that package net's own reads and writes give it: others look for that.
func named(op string, err error) error {
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		failed.Op = op
	}
	return err
}
