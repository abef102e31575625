package waiting

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// memoryWait is a call's wait at the gate.
type memoryWait struct {
	mu sync.Mutex
	// first is the wait as it was expected when it began. Its Waited is set when it has moved.
	first decision.MemoryWait
	// begun is the context in tokens of a program that has begun, 0 for a new one.
	begun int
	// moved is set when it has left the gate for the hold queue or its outcome, gone when its caller left before; guarded by mu.
	moved, gone bool
}

// expire ends the wait after so long; false when the caller left.
func (m *memoryWait) expire(waited time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moved = true
	if m.gone {
		return false
	}
	m.first.Waited = waited
	return true
}

// wait is the wait as a decision shows it, after it has moved; nil for a request that did not wait for memory.
func (m *memoryWait) wait() *decision.MemoryWait {
	if m == nil {
		return nil
	}
	w := m.first
	return &w
}

// newMemoryWait is the wait of the program of p behind others, which is expected to take so long.
func newMemoryWait(p *claims.Call, before int, expected time.Duration) *memoryWait {
	free := 0.0
	for i := range p.Ranks {
		free = max(free, p.Ranks[i].Free)
	}
	return &memoryWait{first: decision.MemoryWait{Program: uint64(p.Call.Name), Tokens: p.Call.Tokens, Free: int(free), Before: before, Expected: expected}}
}

const (
	// A program that has begun goes before the new programs of its tenant that came up to begunFirst after it, and before another one that has begun
	// by its context: begunRate tokens make up for a second.
	begunFirst = 5 * time.Minute
	begunRate  = 500
)

// seniority is the wait that the program's progress counts as: programs that have begun are finished first.
func (m *memoryWait) seniority() time.Duration {
	if m.begun == 0 {
		return 0
	}
	return begunFirst + time.Duration(m.begun)*time.Second/begunRate
}

// passing is the tenants of which a program that has begun was visited and did not fit. The zero value has none.
type passing map[string]bool

// over reports whether a call would pass such a program.
func (p passing) over(t *holdqueue.Ticket, m *memoryWait) bool {
	return m.begun == 0 && !t.First && p[t.Tenant]
}

// note notes a call that does not fit.
func (p *passing) note(t *holdqueue.Ticket, m *memoryWait) {
	if m.begun == 0 {
		return
	}
	if *p == nil {
		*p = passing{}
	}
	(*p)[t.Tenant] = true
}
