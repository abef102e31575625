package socket

import "net"

// writeBoth is WriteBoth as package net does it.
func writeBoth(to net.Conn, a, b []byte) (int, error) {
	both := net.Buffers{a, b}
	n, err := both.WriteTo(to)
	return int(n), err
}
