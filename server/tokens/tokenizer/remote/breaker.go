package remote

import (
	"sync"
	"time"
)

const (
	breakerThreshold = 3
	breakerFirst     = time.Second
	breakerLongest   = 30 * time.Second
	breakerTrial     = 10 * time.Second // after this a trial that never ended counts as gone
)

// breaker keeps questions from an endpoint after consecutive failures. While open it admits
// one trial whenever its pause has passed; each failed trial doubles the pause.
type breaker struct {
	mu       sync.Mutex
	failures int           // guarded by mu; consecutive
	pause    time.Duration // guarded by mu; zero when closed
	until    time.Time     // guarded by mu; end of the pause or of the running trial
}

// allows reports whether a question may be sent now; it changes nothing.
func (b *breaker) allows(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pause == 0 || !now.Before(b.until)
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pause != 0
}

// begin asks to send one question; when the breaker is open the question becomes the trial,
// and the caller says so when it reports the end.
func (b *breaker) begin(now time.Time) (ok, trial bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pause == 0 {
		return true, false
	}
	if now.Before(b.until) {
		return false, false
	}
	b.until = now.Add(breakerTrial)
	return true, true
}

// succeed closes the breaker.
func (b *breaker) succeed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.pause = 0, 0
}

// fail counts a failure and reports whether it opened the breaker. Failures of questions that
// were sent before it opened change nothing more.
func (b *breaker) fail(now time.Time, trial bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	switch {
	case b.pause == 0 && b.failures >= breakerThreshold:
		b.pause = breakerFirst
		b.until = now.Add(b.pause)
		return true
	case b.pause != 0 && trial:
		b.pause = min(2*b.pause, breakerLongest)
		b.until = now.Add(b.pause)
	}
	return false
}

// neutral ends a question that said nothing about the endpoint; after a trial the next
// question may try again.
func (b *breaker) neutral(now time.Time, trial bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if trial && b.pause != 0 {
		b.until = now
	}
}
