package recorder

import (
	"sync"
	"time"
)

// shownPerSecond is how many traces are shown in the console: more than can be read, and too few to
// cost anything.
const shownPerSecond = 20

// sparing lets a bounded number pass each second, so that all is seen on a quiet router and a busy
// one pays next to nothing.
type sparing struct {
	mu   sync.Mutex
	left float64   // guarded by mu
	last time.Time // guarded by mu
}

func newSparing() *sparing { return &sparing{left: shownPerSecond} }

// take asks for one more trace.
func (s *sparing) take(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = min(s.left+shownPerSecond*now.Sub(s.last).Seconds(), shownPerSecond)
	s.last = now
	if s.left < 1 {
		return false
	}
	s.left--
	return true
}
