//go:build !race

package hostile

import "testing"

// ownProcess marks a test whose router is a process of its own.
func ownProcess(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: it starts whole programs and waits for seconds")
	}
}
