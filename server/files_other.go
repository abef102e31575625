//go:build !unix

package server

// MaxFiles is how many files the process may have open.
func MaxFiles() (uint64, bool) { return 0, false }
