//go:build race

package hostile

import "testing"

// ownProcess marks a test whose router is a process of its own, built without the race detector: `make test` runs it without
// the detector, which would only slow the attacker down. Such tests are in ledger_test.go and memory_test.go.
func ownProcess(t *testing.T) {
	t.Helper()
	t.Skip("run without the race detector")
}
