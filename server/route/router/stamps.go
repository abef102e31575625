package router

import (
	"bytes"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// stamps remembers what engines write at the end of their streams, for ends that other replicas or the router write. It is safe for concurrent use; it holds at most
// one entry for each replica.
type stamps struct {
	mu sync.RWMutex
	of map[replica.ID]engineStamp // guarded by mu
}

// engineStamp is the stamp of one life of an engine, without the number of cached tokens.
type engineStamp struct {
	life uint64
	openai.Stamp
}

// known returns the stamp of the replica's engine in its present life, with a number of cached tokens. It is empty before a stream has shown it.
func (s *stamps) known(r *replica.Replica, cached int) openai.Stamp {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.of[r.ID]
	if !ok || e.life != r.Life {
		return openai.Stamp{}
	}
	e.Cached = cached
	return e.Stamp
}

// learn notes the stamp of a stream that the replica's engine has ended. When there are many more entries than replicas in view, it drops entries of other replicas.
func (s *stamps) learn(r *replica.Replica, stamp openai.Stamp, view *registry.Snapshot) {
	if now := s.known(r, stamp.Cached); stamp.Fingerprint == nil && !stamp.Details || now.Details == stamp.Details && bytes.Equal(now.Fingerprint, stamp.Fingerprint) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[replica.ID]engineStamp{}
	}
	if len(s.of) > 2*len(view.Replicas)+64 {
		for id := range s.of {
			if _, there := view.Replica(id); !there {
				delete(s.of, id)
			}
		}
	}
	s.of[r.ID] = engineStamp{r.Life, stamp}
}
