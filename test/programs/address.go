package programs

import (
	"testing"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// FreeAddress is an address of the loopback on which nothing listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	list, err := proc.FreeAddresses(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}
