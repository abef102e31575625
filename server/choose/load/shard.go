package load

import "sync"

// shard is one part of the id map, with its share of the memory of ended reservations. Ids are
// represented by a seeded 64-bit hash; the living are compared in full.
type shard struct {
	mu    sync.Mutex
	live  map[uint64]*Reservation // by hash of the id; guarded by mu
	ended graves                  // guarded by mu
	_     [64]byte                // keeps neighbours off one cache line
}

func (s *shard) open(remembered int) {
	s.live = map[uint64]*Reservation{}
	s.ended = newGraves(remembered)
}

// find returns the live reservation of a tenant's id. s.mu is held.
func (s *shard) find(hash uint64, tenant, id string) *Reservation {
	if r := s.live[hash]; r != nil && r.id == id && r.tenant == tenant {
		return r
	}
	return nil
}

// bury takes an ended reservation out of the living and remembers it, unless it never came to
// be. Later calls find nothing to do.
func (s *shard) bury(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[r.hash] != r {
		return
	}
	delete(s.live, r.hash)
	if !r.void.Load() {
		s.ended.add(r.hash, r.lastAttempt.Load())
	}
}

// graves remembers which ids ended last, and at which attempt. It is a table of small sets: an
// entry goes to the set that its hash names and pushes out the oldest there.
type graves []graveSet

type graveSet [8]grave // newest first

type grave struct {
	hash    uint64 // 0: empty
	attempt uint32
}

func newGraves(n int) graves {
	ways := len(graveSet{})
	return make(graves, (n+ways-1)/ways)
}

func (g graves) set(hash uint64) *graveSet {
	return &g[hash>>32%uint64(len(g))] // the low bits chose the shard
}

func (g graves) add(hash uint64, attempt uint32) {
	if len(g) == 0 {
		return
	}
	set := g.set(hash)
	last := len(set) - 1
	for i, known := range set {
		if known.hash == hash {
			last = i
			break
		}
	}
	copy(set[1:last+1], set[:last])
	set[0] = grave{hash, attempt}
}

func (g graves) find(hash uint64) (attempt uint32, ok bool) {
	if len(g) == 0 {
		return 0, false
	}
	for _, known := range g.set(hash) {
		if known.hash == hash {
			return known.attempt, true
		}
	}
	return 0, false
}
