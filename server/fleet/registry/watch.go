package registry

import (
	"context"
	"iter"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// ChangeKind is the kind of a replica's change.
type ChangeKind uint8

// The kinds of change.
const (
	// ChangeAdded: the replica is new to the watcher.
	ChangeAdded ChangeKind = iota
	// ChangeUpdated: its view changed.
	ChangeUpdated
	// ChangeRemoved: it is gone; Replica is its last view.
	ChangeRemoved
	// ChangeSynced: the watcher has now seen all replicas there are. Replica is nil.
	ChangeSynced
)

// Change is one step of a watch.
type Change struct {
	Kind    ChangeKind
	Replica *replica.Replica
}

// Watch gives all replicas as added, then ChangeSynced, then every change until ctx or the
// registry ends. A slow watcher misses intermediate views, never the last one.
func (r *Registry) Watch(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		seen := map[replica.ID]*replica.Replica{}
		synced := false
		for {
			changed := r.published.next()
			s := r.Snapshot()
			if !diff(seen, s, yield) {
				return
			}
			if !synced && !yield(Change{Kind: ChangeSynced}) {
				return
			}
			synced = true
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-r.done:
				return
			}
		}
	}
}

// diff yields the changes from seen to s and brings seen up to date.
func diff(seen map[replica.ID]*replica.Replica, s *Snapshot, yield func(Change) bool) bool {
	for id, old := range seen {
		if _, stays := s.byID[id]; !stays {
			delete(seen, id)
			if !yield(Change{ChangeRemoved, old}) {
				return false
			}
		}
	}
	for _, now := range s.Replicas {
		old, known := seen[now.ID]
		if known && old == now {
			continue
		}
		seen[now.ID] = now
		kind := ChangeAdded
		if known {
			kind = ChangeUpdated
		}
		if !yield(Change{kind, now}) {
			return false
		}
	}
	return true
}
