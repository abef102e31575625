//go:build race

package replay

import "testing"

// plays marks a test that plays traces for seconds on one goroutine: `make test` runs it without the race detector, under
// which it takes five times as long and shows nothing more.
func plays(t *testing.T) {
	t.Helper()
	t.Skip("played without the race detector")
}

// short is the length of a trace whose runs at once are what the detector is to see.
func short(n int) int { return n / 4 }
