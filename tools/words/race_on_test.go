//go:build race

package main

import "testing"

// reads marks a test that reads all sources on one goroutine: `make test` runs it without the race detector, which takes five
// times as long and finds nothing.
func reads(t *testing.T) {
	t.Helper()
	t.Skip("run without the race detector")
}
