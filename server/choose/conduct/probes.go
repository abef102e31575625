package conduct

import (
	"sync/atomic"
	"time"
)

const (
	// firstProbe and lastProbe bound the time between the probes of a rank that is avoided. cleared is the number of good ones in
	// succession that clear it.
	firstProbe = 10 * time.Second
	lastProbe  = 2 * time.Minute
	// A probe of more expected tokens than shortProbe begins longProbe later.
	shortProbe = 64
	longProbe  = 5 * time.Second
	cleared    = 2
)

// probes are the requests that a rank gets although it is avoided. Its writers hold the rank's mu.
type probes struct {
	at       atomic.Int64 // when the next one is due, in nanoseconds
	interval time.Duration
	good     int // in succession
}

// begin starts with the first one.
func (p *probes) begin(now time.Time) {
	p.interval, p.good = firstProbe, 0
	p.next(now)
}

// next makes the next one due after the interval.
func (p *probes) next(now time.Time) { p.at.Store(now.Add(p.interval).UnixNano()) }

// failed makes them rarer.
func (p *probes) failed() { p.good, p.interval = 0, min(2*p.interval, lastProbe) }

// waived reports whether a request with so many expected output tokens is a probe, which a short one is earlier than a long one: if the rank
// is still slow, it takes less time.
func (p *probes) waived(outputs float64, now time.Time) bool {
	at := p.at.Load()
	if outputs > shortProbe {
		at += int64(longProbe)
	}
	return now.UnixNano() >= at
}
