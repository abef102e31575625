package waiting

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// memoryWait is a call's wait at the gate.
type memoryWait struct {
	mu sync.Mutex
	// first is the wait as it was expected when it began. Its Waited is set when it has moved.
	first decision.MemoryWait
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
