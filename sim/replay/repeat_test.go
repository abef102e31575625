package replay

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

func TestARepeatedTraceSharesNothingBetweenPasses(t *testing.T) {
	once := generated(t, "conv", 300)
	o := Options{Traffic: Traffic{Trace: once, AtLeast: 1000}}
	long := o.enough()
	if n := len(long.Calls); n != 1200 {
		t.Fatalf("%d calls, want four passes of 300", n)
	}
	w := newWorkload(long, 512)
	owner := map[blockhash.Hash]int{}
	for i := range long.Calls {
		pass := i / 300
		c, first := &long.Calls[i], &once.Calls[i%300]
		if c.In != first.In || c.Out != first.Out || c.Session/max(1, sessionsOf(once)) != pass {
			t.Fatalf("call %d is %+v, want a copy of %+v", i, c, first)
		}
		if i > 0 && c.Prev < 0 && c.At < long.Calls[i-1].At {
			t.Fatalf("call %d comes before the one in front of it", i)
		}
		for _, h := range w.hashes[i] {
			if p, ok := owner[h]; ok && p != pass {
				t.Fatalf("call %d has a block of pass %d", i, p)
			}
			owner[h] = pass
		}
	}
	if got := (&Options{Traffic: Traffic{Trace: once}}).enough(); got != once {
		t.Error("a trace is played more than once although nobody asked for that")
	}
}

func sessionsOf(t *Trace) int {
	n := 0
	for i := range t.Calls {
		n = max(n, t.Calls[i].Session+1)
	}
	return n
}
