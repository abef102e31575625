package serve

import (
	"context"
	"runtime/debug"
	"testing"
)

func TestOnlyASmallHeapMayGrowByMoreThanItself(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 10 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes live: got %d %%, want %d %%", live, got, want)
		}
	}
}

func TestTheOperatorsGOGCStands(t *testing.T) {
	before := debug.SetGCPercent(250)
	defer debug.SetGCPercent(before)
	tuneGC(context.Background()) // returns at once
	if got := debug.SetGCPercent(250); got != 250 {
		t.Errorf("GOGC is %d, want the operator's 250", got)
	}
}
