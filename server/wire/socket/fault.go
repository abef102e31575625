package socket

import (
	"errors"
	"slices"
	"syscall"
)

// OwnFault reports whether err says that this machine, not the peer, has no room for another
// connection: no file descriptor, local port or buffer is left. It says nothing about the peer.
func OwnFault(err error) bool {
	var code syscall.Errno
	return errors.As(err, &code) && slices.Contains([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS}, code)
}
