package speed

import (
	"sync"
	"sync/atomic"
	"time"
)

// Report is what an engine counts about its own work.
type Report struct {
	// At is when the report was made; zero: unknown.
	At time.Time
	// Queued is the number of requests that wait in the engine, Foreign the estimate of its requests from other senders.
	Queued  int
	Foreign float64
	// Uncached counts the prompt tokens that the engine did not find in its cache since it began, PrefillSeconds the time
	// that its requests spent in prefill, one by one.
	Uncached       uint64
	PrefillSeconds float64
}

// Counters follows an engine's own counters, report by report. They teach the speed of an engine that
// other senders keep busy, and of one that has served before this process began.
type Counters struct {
	latest atomic.Int64 // when the last report was made, in nanoseconds

	mu       sync.Mutex
	began    time.Time // of the stretch in which requests waited at each report; zero: none; guarded by mu
	uncached uint64    // at began; guarded by mu
}

const (
	// leastStretch and leastComputed are the time and the tokens from which a stretch teaches: the
	// engine counts whole prompts, which begin before it and end behind it.
	leastStretch  = 5 * time.Second
	leastComputed = 16384
	// leastHistory is the number of tokens from which an engine's past teaches.
	leastHistory = 20000
)

// See takes a report into account; one that was seen before is skipped.
func (c *Counters) See(rank *Rank, rep *Report, d Decodes) {
	at := rep.At.UnixNano()
	if rep.At.IsZero() || c.latest.Load() == at {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.latest.Swap(at) == 0
	if first && rep.Uncached >= leastHistory && rep.PrefillSeconds > 0 {
		rank.history(float64(rep.Uncached), rep.PrefillSeconds, rep.At)
	}
	// Own requests teach more exactly where no others delay them.
	if rep.Queued == 0 || rep.Foreign < 1 || rep.Uncached < c.uncached {
		c.began = time.Time{}
		c.uncached = rep.Uncached
		return
	}
	if c.began.IsZero() {
		c.began, c.uncached = rep.At, rep.Uncached
		return
	}
	if took, n := rep.At.Sub(c.began), rep.Uncached-c.uncached; took >= leastStretch && n >= leastComputed {
		rank.throughput(float64(n), took.Seconds(), d, rep.At)
		c.began, c.uncached = rep.At, rep.Uncached
	}
}
