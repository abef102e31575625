package kvindex

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// roster has the rank of each slot. Readers take no lock: they load the list, which put replaces as a whole.
type roster struct {
	list    atomic.Pointer[[]*rank]
	faces   []face       // by slot
	unknown atomic.Int64 // calls for slots that do not exist

	mu   sync.Mutex
	past Totals // of ranks that are gone; guarded by mu
}

// all returns the ranks by slot; a free slot has nil. Callers MUST NOT change it.
func (t *roster) all() []*rank { return *t.list.Load() }

// rank returns the rank of slot, or nil.
func (t *roster) rank(slot replica.Slot) *rank {
	list := *t.list.Load()
	if int(slot) >= len(list) {
		return nil
	}
	return list[slot]
}

// named returns the rank of this name, or nil.
func (t *roster) named(name replica.Rank) *rank {
	for _, r := range t.all() {
		if r != nil && r.info.Rank == name {
			return r
		}
	}
	return nil
}

// put gives slot to r; nil frees it. The caller holds mu.
func (t *roster) put(slot replica.Slot, r *rank) {
	list := slices.Clone(t.all())
	for len(list) <= int(slot) {
		list = append(list, nil)
	}
	list[slot] = r
	t.list.Store(&list)
}

// locked calls f with the rank of slot under its lock; an unknown slot is counted.
func (t *roster) locked(slot replica.Slot, f func(*rank)) {
	r := t.rank(slot)
	if r == nil {
		t.unknown.Add(1)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		t.unknown.Add(1)
		return
	}
	f(r)
}

// State returns the state of the rank's feed; FeedNone for slots that do not exist.
func (t *roster) State(slot replica.Slot) kvblock.FeedState {
	state, _ := t.Rank(slot)
	return state
}

// BlockSize returns the rank's block size in tokens: learned from events, else as reported,
// else 0.
func (t *roster) BlockSize(slot replica.Slot) int {
	_, size := t.Rank(slot)
	return size
}

// Rank returns State and BlockSize in one read.
func (t *roster) Rank(slot replica.Slot) (state kvblock.FeedState, blockSize int) {
	if int(slot) >= len(t.faces) {
		return kvblock.FeedNone, 0
	}
	f := &t.faces[slot]
	if blockSize = int(f.blockSize.Load()); blockSize == 0 {
		blockSize = int(f.reported.Load())
	}
	return kvblock.FeedState(f.feed.Load()), blockSize
}

// Reach returns how many of a prompt's tokens the rank can take from its cache at most, whatever it
// holds: the last token is always computed, and an engine that speculates names a block only when
// the tokens behind it are there.
func (t *roster) Reach(slot replica.Slot, promptTokens int) int {
	ahead := 1
	if int(slot) < len(t.faces) {
		ahead = max(ahead, int(t.faces[slot].lookahead.Load()))
	}
	return max(0, promptTokens-ahead)
}
