package directory

import (
	"sync"
	"time"
)

const (
	// toleratedFailures is the number of consecutive failures from which the service rests.
	toleratedFailures = 3
	firstPause        = time.Second
	longestPause      = 30 * time.Second
)

// rest keeps a service that fails from costing every choice its budget. After each pause one lookup tries it. The zero value is ready. It is safe for
// concurrent use.
type rest struct {
	mu       sync.Mutex
	failures int       // consecutive ones; guarded by mu
	until    time.Time // the end of the pause; guarded by mu
	trying   bool      // the lookup after a pause is under way; guarded by mu
}

// enter reports whether the service may be asked at now. If so, succeed, fail or leave must follow.
func (r *rest) enter(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures < toleratedFailures {
		return true
	}
	if r.trying || now.Before(r.until) {
		return false
	}
	r.trying = true
	return true
}

// succeed notes an answer, and reports whether the service had rested before.
func (r *rest) succeed() (rested bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rested = r.failures >= toleratedFailures
	r.failures, r.trying = 0, false
	return rested
}

// fail notes a failure, and returns the length of the pause that it begins; 0 for none.
func (r *rest) fail(now time.Time) (pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures >= toleratedFailures && !r.trying {
		return 0 // it began before the pause
	}
	r.failures, r.trying = r.failures+1, false
	if r.failures < toleratedFailures {
		return 0
	}
	pause = min(firstPause<<min(r.failures-toleratedFailures, 8), longestPause)
	r.until = now.Add(pause)
	return pause
}

// leave notes a lookup that says nothing about the service.
func (r *rest) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = false
}

// end forgets all failures.
func (r *rest) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures, r.trying = 0, false
}
