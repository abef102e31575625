//go:build !unix

package server

// maxFiles is how many files the process may have open.
func maxFiles() (uint64, bool) { return 0, false }
