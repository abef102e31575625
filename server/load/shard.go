package load

import "sync"

// shard is one part of the id map, with its share of the memory of ended reservations.
type shard struct {
	mu    sync.Mutex
	live  map[string]*Reservation // guarded by mu
	ended map[string]uint32       // last attempt of each remembered id; guarded by mu
	ring  []string                // the ids of ended, oldest at next; guarded by mu
	next  int                     // guarded by mu
	_     [64]byte                // keeps neighbours off one cache line
}

func (s *shard) open(remembered int) {
	s.live = map[string]*Reservation{}
	s.ended = map[string]uint32{}
	s.ring = make([]string, remembered)
}

// bury takes an ended reservation out of the living and remembers it, unless it never came to
// be. Later calls find nothing to do.
func (s *shard) bury(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[r.id] != r {
		return
	}
	delete(s.live, r.id)
	if !r.void.Load() {
		s.remember(r.id, r.lastAttempt.Load())
	}
}

// remember records an ended id and forgets the oldest when the ring is full. s.mu is held.
func (s *shard) remember(id string, attempt uint32) {
	if len(s.ring) == 0 {
		return
	}
	if _, known := s.ended[id]; known { // ended again after a later attempt: it keeps its place
		s.ended[id] = attempt
		return
	}
	if oldest := s.ring[s.next]; oldest != "" {
		delete(s.ended, oldest)
	}
	s.ring[s.next] = id
	s.next = (s.next + 1) % len(s.ring)
	s.ended[id] = attempt
}
