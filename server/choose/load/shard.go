package load

import "sync"

// shard is one part of the id map, with its share of the memory of ended reservations. Ids are
// represented by a seeded 64-bit hash; live ones are compared in full.
type shard struct {
	mu    sync.Mutex
	live  map[uint64]*Reservation // by hash of the id; guarded by mu
	ended tombstones              // guarded by mu
	_     [64]byte                // keeps neighbours off one cache line
}

func (s *shard) open(remembered int) {
	s.live = map[uint64]*Reservation{}
	s.ended = newTombstones(remembered)
}

// find returns the live reservation of a tenant's id. s.mu is held.
func (s *shard) find(hash uint64, tenant, id string) *Reservation {
	if r := s.live[hash]; r != nil && r.id == id && r.tenant == tenant {
		return r
	}
	return nil
}

// end removes an ended reservation from the live ones and remembers it, unless it was never booked. Later calls find nothing to do.
func (s *shard) end(r *Reservation) {
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

// tombstones remembers which ids ended last, and at which attempt. It is a table of small sets: an
// entry goes to the set that its hash names and pushes out the oldest there.
type tombstones []tombstoneSet

type tombstoneSet [8]tombstone // newest first

type tombstone struct {
	hash    uint64 // 0: empty
	attempt uint32
}

func newTombstones(n int) tombstones {
	ways := len(tombstoneSet{})
	return make(tombstones, (n+ways-1)/ways)
}

func (g tombstones) set(hash uint64) *tombstoneSet {
	return &g[hash>>32%uint64(len(g))] // the low bits chose the shard
}

func (g tombstones) add(hash uint64, attempt uint32) {
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
	set[0] = tombstone{hash, attempt}
}

func (g tombstones) find(hash uint64) (attempt uint32, ok bool) {
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
