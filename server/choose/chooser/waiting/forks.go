package waiting

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

const (
	// forkWindow is how soon after the first request with a prefix the others of a fork come.
	forkWindow = time.Second
	// forkShare is the share of the latest prefixes that were forked from which the next one is taken to be, and forkLatest about how many
	// those are.
	forkShare, forkLatest = 0.5, 4
	// mostForks bounds the prefixes that are watched.
	mostForks = 256
)

// forks learns whether prefixes that ranks hold are continued by many requests at once, such as the subagents of one agent, and expects it of the next
// one: its copies then begin with the first of these requests. It is safe for concurrent use.
type forks struct {
	mu    sync.Mutex
	since map[blockhash.Hash]*continued // guarded by mu
	share float64                       // of forked prefixes; guarded by mu
}

// continued is a prefix that is watched.
type continued struct {
	until time.Time
	count int
}

// continues notes a request that begins with a prefix, and reports whether it is the first one of a fork.
func (f *forks) continues(key blockhash.Hash, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judge(now)
	if one := f.since[key]; one != nil {
		one.count++
		return false
	}
	if len(f.since) >= mostForks {
		return false
	}
	if f.since == nil {
		f.since = map[blockhash.Hash]*continued{}
	}
	f.since[key] = &continued{until: now.Add(forkWindow), count: 1}
	return f.share >= forkShare
}

// judge counts the prefixes that were watched long enough; mu is held.
func (f *forks) judge(now time.Time) {
	for key, one := range f.since {
		if now.Before(one.until) {
			continue
		}
		delete(f.since, key)
		forked := 0.0
		if one.count >= selector.LeastSharers {
			forked = 1
		}
		f.share += (forked - f.share) / forkLatest
	}
}

// ahead begins a copy of the beginning of the first request of a fork, before that request lengthens the step of the rank that holds it. It reports
// whether the request may wait until that rank has passed its cache on.
func (h *holding) ahead(s *evaluate.Evaluation, w *Waiter, now time.Time) bool {
	if s.Decision.Chosen < 0 || !s.Held {
		return false
	}
	key, ok := s.Prefix(w.req)
	if !ok || !w.line.expected.continues(key, now) || !s.PullAhead() {
		return false
	}
	_, begun := h.booker.StartCopy(s, w.req, now)
	return begun
}
