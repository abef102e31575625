package indexbench

import "testing"

func TestAllocationsPerLookup(t *testing.T) {
	for allocated, want := range map[uint64]float64{0: 0, 3: 0, 8: 0, 108: 1} {
		if got := perLookup(allocated, 100); got != want {
			t.Errorf("perLookup(%d, 100) = %v, want %v", allocated, got, want)
		}
	}
}
