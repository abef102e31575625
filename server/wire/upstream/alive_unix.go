//go:build unix

package upstream

import (
	"syscall"
	"unsafe"
)

// alive reports whether an idle connection can take a request: the replica has neither
// closed it nor sent anything unrequested.
func (c *conn) alive() bool {
	if c.raw == nil {
		return true
	}
	quiet := false
	err := c.raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&one)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}
