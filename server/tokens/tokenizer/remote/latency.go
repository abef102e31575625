package remote

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	latencySamples = 64
	// hedgeUnknown is the hedge's delay while too little is known.
	hedgeUnknown = 250 * time.Millisecond
	hedgeLeast   = 5 * time.Millisecond
)

// latency remembers how long questions of each size took, in classes of a factor two, so that
// "slow" means slow for its size.
type latency struct {
	mu      sync.Mutex
	classes [32]latencyClass // guarded by mu
}

type latencyClass struct {
	ring  [latencySamples]time.Duration
	next  int
	count int
	p95   time.Duration
}

func classOf(size int) int { return min(bits.Len(uint(max(size, 0))>>8), 31) }

func (l *latency) add(size int, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.classes[classOf(size)]
	c.ring[c.next] = d
	c.next = (c.next + 1) % latencySamples
	c.count++
	if c.count >= 8 && c.count%8 == 0 {
		n := min(c.count, latencySamples)
		sorted := slices.Clone(c.ring[:n])
		slices.Sort(sorted)
		c.p95 = sorted[n*95/100]
	}
}

// p95 is the time that 95 of 100 questions of the size needed, 0 when unknown.
func (l *latency) p95(size int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.classes[classOf(size)].p95
}

// hedgeDelay is when to ask a second endpoint: later than nearly all answers came, with some
// room so that answers of steady speed are not raced.
func (l *latency) hedgeDelay(size int) time.Duration {
	p := l.p95(size)
	if p == 0 {
		return hedgeUnknown
	}
	return max(p+p/4, hedgeLeast)
}

// attemptLimit is when one attempt counts as hung: far beyond the usual time for the size.
func (l *latency) attemptLimit(size int, limit time.Duration) time.Duration {
	p := l.p95(size)
	if p == 0 {
		return min(limit, 2*time.Second+time.Duration(size)*20*time.Nanosecond)
	}
	return min(limit, max(500*time.Millisecond, 20*p))
}
