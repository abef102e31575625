//go:build unix

package socket

import "syscall"

// PlainRead is Read with a system call that the scheduler knows of, as package net makes it.
func PlainRead(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
