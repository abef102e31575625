//go:build !linux

package socket

import "net"

// Listener returns l.
func Listener(l net.Listener) net.Listener { return l }
