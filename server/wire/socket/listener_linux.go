package socket

import "net"

// Listener returns a listener of TCP connections that keep the processor while they read and write. Other
// connections of l are passed on as they are.
func Listener(l net.Listener) net.Listener { return &listener{Listener: l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Quick(c), nil
}

// Quick returns the TCP connection c as one that keeps the processor while it reads and writes. Other connections are returned as
// they are. All else of c stays as it is; its owner closes the returned one.
func Quick(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c // it works as any connection does
	}
	quick := &conn{TCPConn: tcp, raw: raw}
	quick.in.try, quick.out.try = quick.in.read, quick.out.write
	return quick
}
