package attempt

import (
	"bytes"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// stamps remembers the ends of the streams of each version of engines, for ends that other replicas or the router write. Engines of one version
// that are configured in different ways have different fingerprints: the last one counts. It is safe for concurrent use.
type stamps struct {
	mu sync.RWMutex
	of map[string]openai.Stamp // guarded by mu
}

// maxStamps bounds the versions.
const maxStamps = 64

// known returns the stamp of the replica's version, with a number of cached tokens. It is empty before a stream has shown it.
func (s *stamps) known(r *replica.Replica, cached int) openai.Stamp {
	s.mu.RLock()
	defer s.mu.RUnlock()
	stamp := s.of[r.Version]
	stamp.Cached = cached
	return stamp
}

// Stamp returns the stamp of the replica's version, with a number of cached tokens.
func (e *sender) Stamp(r *replica.Replica, cached int) openai.Stamp { return e.stamps.known(r, cached) }

// learn notes the stamp of a stream that the replica's engine has ended.
func (s *stamps) learn(r *replica.Replica, stamp openai.Stamp) {
	now := s.known(r, stamp.Cached)
	if stamp.Details = stamp.Details || now.Details; stamp.Fingerprint == nil { // a stream without its usage shows the fingerprint alone
		stamp.Fingerprint = now.Fingerprint
	}
	if now.Details == stamp.Details && bytes.Equal(now.Fingerprint, stamp.Fingerprint) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil || len(s.of) >= maxStamps {
		s.of = map[string]openai.Stamp{}
	}
	s.of[r.Version] = stamp
}
