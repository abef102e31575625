//go:build !race

package replay

import "testing"

// plays marks a test that plays traces for seconds on one goroutine: the whole suite runs it, -short does not.
func plays(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: it plays traces for seconds")
	}
}

// short is the length of a trace whose runs at once are compared.
func short(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}
