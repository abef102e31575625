package socket

import (
	"syscall"
	"unsafe"
)

// Read reads available bytes into b, which must not be empty. The descriptor must be one that does
// not block; while there are none, the error is syscall.EAGAIN. No bytes and no error are the end.
func Read(fd uintptr, b []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			afterRead(fd)
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
