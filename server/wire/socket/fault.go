package socket

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
)

// OwnFault reports whether err says that this machine, not the peer, has no room for another
// connection: no file descriptor, local port, buffer or memory is left. It says nothing about the peer.
func OwnFault(err error) bool {
	own := []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM}
	var code syscall.Errno
	if errors.As(err, &code) {
		return slices.Contains(own, code)
	}
	lookup, ok := errors.AsType[*net.DNSError](err) // which keeps the text alone
	return ok && slices.ContainsFunc(own, func(code syscall.Errno) bool { return strings.HasSuffix(lookup.Err, code.Error()) })
}
