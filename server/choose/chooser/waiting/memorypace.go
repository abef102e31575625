package waiting

import (
	"sync"
	"time"
)

const (
	// paceFrom is the number of admissions from which the pace is known, paceWeight the weight of the last one.
	paceFrom, paceWeight = 4, 0.1
	// memoryRetry is the hint for the retry of a program while the pace is not known: programs last minutes.
	memoryRetry = 30 * time.Second
	// leastMemoryRetry and mostMemoryRetry bound the hint for a retry.
	leastMemoryRetry, mostMemoryRetry = 5 * time.Second, 2 * time.Minute
)

// memoryPace is the time between two admissions while programs wait.
type memoryPace struct {
	mu    sync.Mutex
	last  int64   // the last admission, or the begin of the line, on the chooser's scale; 0: none waits; guarded by mu
	mean  float64 // in nanoseconds; guarded by mu
	count int     // guarded by mu
}

// begin notes that a program waits.
func (p *memoryPace) begin(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == 0 {
		p.last = now
	}
}

// admitted notes n admissions. waiting is the number of programs that remain.
func (p *memoryPace) admitted(n, waiting int, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.last > 0 {
		each := float64(now-p.last) / float64(n)
		for range n {
			if p.count++; p.count == 1 {
				p.mean = each
			}
			p.mean += paceWeight * (each - p.mean)
		}
		p.last = now
	}
	if waiting == 0 {
		p.last = 0
	}
}

// expected is the time until a program is admitted that has some before it; 0 when the pace is not known.
func (p *memoryPace) expected(before int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count < paceFrom {
		return 0
	}
	return time.Duration(p.mean * float64(before+1))
}

// retry is the hint for a program that has been refused while others wait.
func (p *memoryPace) retry(waiting int) time.Duration {
	if d := p.expected(waiting); d > 0 {
		return min(max(d, leastMemoryRetry), mostMemoryRetry)
	}
	return memoryRetry
}
