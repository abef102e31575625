package serve

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The garbage collector lets the heap double by default. A router with a small heap then
// collects after every few large bodies, which cost it a quarter of its time. So a small heap
// may grow to heapFloor, and never by more than maxGCPercent.
const (
	heapFloor     = 64 << 20
	minGCPercent  = 100
	maxGCPercent  = 400
	gcTunePeriod  = time.Second
	liveHeapBytes = "/gc/heap/live:bytes"
)

// tuneGC keeps the collector's pace fitting to the heap's size until ctx ends. When the
// operator has set GOGC, it does nothing.
func tuneGC(ctx context.Context) {
	if set := debug.SetGCPercent(minGCPercent); set != minGCPercent {
		debug.SetGCPercent(set)
		return
	}
	defer debug.SetGCPercent(minGCPercent)
	tick := time.NewTicker(gcTunePeriod)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: liveHeapBytes}}
	for now := minGCPercent; ; {
		metrics.Read(sample)
		if want := gcPercent(sample[0].Value.Uint64()); want < now*9/10 || want > now*11/10 {
			now = want
			debug.SetGCPercent(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// gcPercent is how much a heap with that many live bytes may grow.
func gcPercent(live uint64) int {
	if live == 0 {
		return maxGCPercent
	}
	return int(min(max(heapFloor*100/live, minGCPercent), maxGCPercent))
}
