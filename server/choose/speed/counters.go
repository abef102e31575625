package speed

import (
	"sync"
	"sync/atomic"
	"time"
)

// Report has an engine's counts of its own work.
type Report struct {
	// At is when the report was made; zero: unknown.
	At time.Time
	// Queued is the number of requests that wait in the engine, Foreign the estimate of its requests from other senders.
	Queued  int
	Foreign float64
	// Uncached counts the prompt tokens that the engine did not find in its cache since it began, when their requests start.
	Uncached uint64
	// PrefillSeconds is the time that requests spent in prefill, one by one, and Computed the tokens that they did not find in a
	// cache, both counted when they end; Computed is 0 when the engine does not count it.
	PrefillSeconds float64
	Computed       uint64
}

// Counters follows an engine's own counters, report by report. They teach the speed of an engine that
// other senders keep busy, of one that has served before this process began, and of one whose answers come whole: several of these at
// a time show no first token.
type Counters struct {
	latest atomic.Int64 // when the last report was made, in nanoseconds

	mu       sync.Mutex
	began    time.Time // of the stretch in which requests waited at each report; zero: none; guarded by mu
	uncached uint64    // at began; guarded by mu
	taken    Report    // up to which prefill was taken into account; guarded by mu
}

const (
	// leastStretch and leastComputed are the time and the tokens from which a stretch teaches: the
	// engine counts whole prompts, which begin before it and end behind it.
	leastStretch  = 5 * time.Second
	leastComputed = 16384
	// leastHistory is the number of tokens from which the time that an engine counted teaches.
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
	before := c.latest.Swap(at)
	if before == at {
		return
	}
	c.counted(rank, rep, before == 0)
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

// counted shows the rank how much was prefilled since the last time, or since the engine began, in how much time. A count that an engine
// makes at the start of requests fits the time that it counts at their end only over a long past. The caller holds mu.
func (c *Counters) counted(rank *Rank, rep *Report, first bool) {
	if rep.Computed < c.taken.Computed || rep.PrefillSeconds < c.taken.PrefillSeconds { // the engine was restarted
		c.taken = Report{}
	}
	n, took := rep.Computed-c.taken.Computed, rep.PrefillSeconds-c.taken.PrefillSeconds
	if rep.Computed == 0 && first {
		n = rep.Uncached
	}
	if n >= leastHistory && took > 0 {
		rank.counted(float64(n), took, rep.At)
		c.taken = *rep
	}
}
