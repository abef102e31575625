package kvindex

import (
	"math/bits"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/kvblock"
)

// An entry of a revmap is two words: 56 bits of the spread engine hash with an eight-bit
// reference count below, and the block's own key (zero: the block cannot be keyed).
const (
	refMask  = 0xFF
	revMin   = 32
	revGrow  = 1.25
	revLoad  = 0.75
	revEntry = 16
)

// revmap maps an engine's block names to own keys and counts the copies of each block. It is
// a flat table with linear probing, for one writer at a time.
type revmap struct {
	words []uint64 // two per entry
	live  int
	// more has the copies of a block beyond 255, which is rarely ever needed.
	more map[uint64]uint32
}

// revID spreads an engine hash (a bijection), less its lowest byte.
func revID(h kvblock.EngineHash) uint64 {
	x := uint64(h)
	x = (x ^ x>>32) * 0x9E3779B97F4A7C15
	x = (x ^ x>>29) * 0xBF58476D1CE4E5B9
	return x &^ refMask
}

func (m *revmap) size() uint64 { return uint64(len(m.words) / 2) }

func (m *revmap) home(id uint64) uint64 {
	at, _ := bits.Mul64(id, m.size())
	return at
}

// touch loads the cache line where the search for id begins.
func (m *revmap) touch(id uint64) uint64 {
	if len(m.words) == 0 {
		return 0
	}
	return m.words[2*m.home(id)]
}

// find returns the index of id's entry and whether it is there; else the index is where it
// would go. The table must not be empty.
func (m *revmap) find(id uint64) (int, bool) {
	n := m.size()
	for at := m.home(id); ; {
		w := m.words[2*at]
		if w == 0 || w&^refMask == id {
			if w != 0 {
				return int(at), true
			}
			return int(at), false
		}
		if at++; at == n {
			at = 0
		}
	}
}

// get returns the key of id and whether there is an entry.
func (m *revmap) get(id uint64) (blockhash.Hash, bool) {
	if m.live == 0 {
		return 0, false
	}
	at, ok := m.find(id)
	if !ok {
		return 0, false
	}
	return blockhash.Hash(m.words[2*at+1]), true
}

// room makes sure that n more entries fit.
func (m *revmap) room(n int) {
	if need := float64(m.live+n) / revLoad; need > float64(m.size()) {
		m.resize(max(int(need)+1, int(float64(m.size())*revGrow), revMin))
	}
}

func (m *revmap) resize(n int) {
	old := m.words
	m.words = hugeSlice(2 * n)
	for i := 0; i < len(old); i += 2 {
		if old[i] != 0 {
			at, _ := m.find(old[i] &^ refMask)
			m.words[2*at], m.words[2*at+1] = old[i], old[i+1]
		}
	}
}

// add counts one more copy of id. It returns the entry's index and whether it is new; a new
// one has the given key. Room must have been made.
func (m *revmap) add(id uint64, key blockhash.Hash) (int, bool) {
	at, ok := m.find(id)
	if !ok {
		m.words[2*at], m.words[2*at+1] = id|1, uint64(key)
		m.live++
		return at, true
	}
	if m.words[2*at]&refMask == refMask {
		if m.more == nil {
			m.more = map[uint64]uint32{}
		}
		m.more[id]++
		return at, false
	}
	m.words[2*at]++
	return at, false
}

// drop counts one copy less. It returns the key and whether that was the last copy (then the
// entry is gone); known is false when there was no entry.
func (m *revmap) drop(id uint64) (key blockhash.Hash, last, known bool) {
	if m.live == 0 {
		return 0, false, false
	}
	at, ok := m.find(id)
	if !ok {
		return 0, false, false
	}
	key = blockhash.Hash(m.words[2*at+1])
	if n := m.more[id]; n > 0 {
		if m.more[id] = n - 1; n == 1 {
			delete(m.more, id)
		}
		return key, false, true
	}
	if m.words[2*at]&refMask > 1 {
		m.words[2*at]--
		return key, false, true
	}
	m.erase(uint64(at))
	return key, true, true
}

// erase takes the entry at gap out and moves later ones of its run back.
func (m *revmap) erase(gap uint64) {
	n := m.size()
	m.live--
	for at := gap; ; {
		if at++; at == n {
			at = 0
		}
		w := m.words[2*at]
		if w == 0 {
			break
		}
		if home := m.home(w &^ refMask); distance(home, at, n) >= distance(gap, at, n) {
			m.words[2*gap], m.words[2*gap+1] = w, m.words[2*at+1]
			gap = at
		}
	}
	m.words[2*gap], m.words[2*gap+1] = 0, 0
}

// distance is the number of steps from one index to another in a ring of n.
func distance(from, to, n uint64) uint64 {
	if to < from {
		return to + n - from
	}
	return to - from
}

func (m *revmap) bytes() int64 { return 8*int64(cap(m.words)) + 48*int64(len(m.more)) }
