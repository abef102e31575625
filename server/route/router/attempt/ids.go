package attempt

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// idsAnswer is what is known of an engine about requests for token ids.
type idsAnswer uint8

const (
	idsUnknown idsAnswer = iota
	// idsAccepted: it has answered such a request, with ids or without.
	idsAccepted
	// idsRefused: it rejects bodies with that member, and accepts the same ones without it.
	idsRefused
)

// idsSupport remembers which engines reject a body for the member that asks for token ids. It is safe for concurrent use; it holds
// about as many entries as there are replicas.
type idsSupport struct {
	mu sync.RWMutex
	of map[replica.ID]engineIDs // guarded by mu
}

// engineIDs is the answer of one life of an engine.
type engineIDs struct {
	life    uint64
	version string
	answer  idsAnswer
}

// known returns what is known of the replica's engine in its present life.
func (s *idsSupport) known(r *replica.Replica) idsAnswer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.of[r.ID]; e.life == r.Life && e.version == r.Version {
		return e.answer
	}
	return idsUnknown
}

// learn notes an answer. When there are many more entries than replicas in view, it drops those of other replicas.
func (s *idsSupport) learn(r *replica.Replica, answer idsAnswer, view *registry.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[replica.ID]engineIDs{}
	}
	if len(s.of) > 2*len(view.Replicas)+64 {
		for id := range s.of {
			if _, there := view.Replica(id); !there {
				delete(s.of, id)
			}
		}
	}
	s.of[r.ID] = engineIDs{life: r.Life, version: r.Version, answer: answer}
}
