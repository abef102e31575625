package past

import (
	"context"
	"hash/maphash"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Sessions remembers the rank that served each session last. It is bounded: the older half is forgotten when it is full.
// Sessions of different tenants are different ones, whatever their names.
type Sessions struct {
	seed  maphash.Seed
	turns Turns

	mu    sync.Mutex
	young map[sessionKey]visit // guarded by mu
	old   map[sessionKey]visit // guarded by mu
}

// sessionKey stands for a session's name and tenant by their hash, whose seed no caller knows.
type sessionKey struct {
	of   *Trail
	name uint64
}

const (
	// maxSessions bounds each of the two generations.
	maxSessions = 1 << 16
	// UsualReturn is the share of requests that have a next turn (docs/adr/006-predicted-time.md). Learning it for each session
	// changed means by 1 % or less in the player, so only the callers' own statements about a session count.
	UsualReturn = 0.3
)

// visit is the last request of a session.
type visit struct {
	slot replica.Slot
	// until is when the session is forgotten, on the chooser's scale.
	until int64
}

// NewSessions returns the memory of no session. turns counts the requests.
func NewSessions(turns Turns) *Sessions {
	return &Sessions{seed: maphash.MakeSeed(), turns: turns, young: map[sessionKey]visit{}}
}

func (s *Sessions) key(of *Trail, tenant, session string) sessionKey {
	return sessionKey{of, s.Name(tenant, session)}
}

// Name stands for a session's name among its tenant's; without a session for the tenant's own.
func (s *Sessions) Name(tenant, session string) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(tenant) // never fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(session)
	return h.Sum64()
}

// get returns the last visit, unless it is forgotten by now.
func (s *Sessions) get(k sessionKey, now int64) (visit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.young[k]
	if !ok {
		v, ok = s.old[k]
	}
	return v, ok && now <= v.until
}

func (s *Sessions) put(k sessionKey, v visit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.young) >= maxSessions {
		s.old, s.young = s.young, map[sessionKey]visit{}
	}
	s.young[k] = v
}

func (s *Sessions) end(k sessionKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.young, k)
	delete(s.old, k)
}

// Forget removes the sessions of a rank.
func (s *Sessions) Forget(slot replica.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range []map[sessionKey]visit{s.young, s.old} {
		for k, v := range m {
			if v.slot == slot {
				delete(m, k)
			}
		}
	}
}

// Size is about how many sessions are remembered.
func (s *Sessions) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.young) + len(s.old)
}

// Turns counts the requests with a session.
type Turns struct {
	count              metric.Int64Counter
	first, same, other metric.MeasurementOption
}

// NewTurns declares the counter of turns.
func NewTurns(s *instruments.Set) Turns {
	m := Turns{first: instruments.Label("rank", "first"), same: instruments.Label("rank", "same"), other: instruments.Label("rank", "other")}
	m.count = s.CounterBy("kvpilot.chooser.session_turns", "{request}", "Requests with a session, by their rank: first (a new or forgotten session), same or other than its last one.",
		m.first, m.same, m.other)
	return m
}

// add counts a request. known says that the session was remembered, same that it went to its last rank.
func (m *Turns) add(known, same bool) {
	turn := m.other
	switch {
	case !known:
		turn = m.first
	case same:
		turn = m.same
	}
	m.count.Add(context.Background(), 1, turn)
}
