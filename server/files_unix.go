//go:build unix

package server

import "syscall"

// MaxFiles is how many files the process may have open.
func MaxFiles() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return limit.Cur, true
}
