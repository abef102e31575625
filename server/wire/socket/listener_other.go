//go:build !linux

package socket

import "net"

// Listener returns l.
func Listener(l net.Listener) net.Listener { return l }

// Quick returns c.
func Quick(c net.Conn) net.Conn { return c }

// WriteBoth writes a and then b, in as few segments as it can be. It returns how much of both was written.
func WriteBoth(to net.Conn, a, b []byte) (int, error) { return writeBoth(to, a, b) }
