//go:build unix && !linux

package socket

// Read reads available bytes into b, which must not be empty. The descriptor must be one that does
// not block; while there are none, the error is syscall.EAGAIN. No bytes and no error are the end.
func Read(fd uintptr, b []byte) (int, error) { return PlainRead(fd, b) }
