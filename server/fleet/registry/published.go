package registry

import (
	"sync"
	"sync/atomic"
)

// published is the present snapshot, for readers and for goroutines that wait for the next one.
type published struct {
	snapshot atomic.Pointer[Snapshot]

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each snapshot; guarded by mu
}

func newPublished() *published {
	p := &published{changed: make(chan struct{})}
	p.snapshot.Store(newSnapshot(nil, nil))
	return p
}

// now is the present snapshot. It is never nil.
func (p *published) now() *Snapshot { return p.snapshot.Load() }

// publish makes s the present snapshot and wakes the watchers.
func (p *published) publish(s *Snapshot) {
	p.snapshot.Store(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// next returns a channel that is closed with the next snapshot. A watcher calls it before now, so that it misses none.
func (p *published) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}
