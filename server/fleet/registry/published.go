package registry

import "sync/atomic"

// published is the present snapshot, for readers and watchers.
type published struct{ snapshot atomic.Pointer[Snapshot] }

func newPublished() *published {
	p := &published{}
	p.snapshot.Store(newSnapshot(nil, nil))
	return p
}

// now is the present snapshot. It is never nil.
func (p *published) now() *Snapshot { return p.snapshot.Load() }

// publish makes s, which no earlier call had, the present snapshot and wakes its watchers.
func (p *published) publish(s *Snapshot) { close(p.snapshot.Swap(s).superseded) }

// next returns a channel that is closed with the next snapshot. A watcher calls it before now, so that it misses none.
func (p *published) next() <-chan struct{} { return p.now().superseded }
