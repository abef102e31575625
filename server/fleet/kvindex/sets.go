package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A set of ranks is named by an id. Zero is the empty set, 1 to singles-1 are the sets of one
// rank (its slot plus one), and everything above is interned: one entry per distinct set, with
// a count of the slots that name it. Most blocks have one holder, and blocks of one prefix
// share their set, so there are thousands of sets for millions of blocks.
const (
	singles   = 1 << 16
	chunkBits = 12
	chunkSets = 1 << chunkBits
	chunks    = (1<<idBits - singles) / chunkSets
	// reuseBatch is how many ids are freed before any is used again: each reuse makes the
	// lookups that are under way start over.
	reuseBatch = 1024
)

// setTable interns sets. Readers call members; everything else is for writers.
type setTable struct {
	words  int    // 64-bit words per set
	limit  uint32 // ids below it may be made
	chunks [chunks]atomic.Pointer[setChunk]
	// epoch grows before freed ids are used again. A reader that sees another epoch read ids that
	// may have meant something else, and starts over.
	epoch atomic.Uint64
	bytes atomic.Int64
	// full counts additions refused because all ids are taken.
	full atomic.Int64

	mu    sync.Mutex
	next  uint32   // ids below were made; guarded by mu
	free  []uint32 // ids ready for use; guarded by mu
	quiet []uint32 // ids freed since the last epoch; guarded by mu
	index []uint32 // open-addressing table of live ids by content; guarded by mu
	live  int      // guarded by mu
	tmp   []uint64 // guarded by mu
}

type setChunk struct {
	refs  [chunkSets]atomic.Int32
	words []uint64
}

func newSetTable(maxRanks int) *setTable {
	w := (maxRanks + 63) / 64
	return &setTable{words: w, limit: 1 << idBits, next: singles, tmp: make([]uint64, w), index: make([]uint32, 256)}
}

func single(slot replica.Slot) uint32 { return uint32(slot) + 1 }

// members returns the words of an interned set. They are read atomically and mean nothing
// when the epoch changed during the read.
func (t *setTable) members(id uint32) []uint64 {
	n := id - singles
	c := t.chunks[n>>chunkBits].Load()
	at := int(n&(chunkSets-1)) * t.words
	return c.words[at : at+t.words]
}

// has reports whether slot is in the set id.
func (t *setTable) has(id uint32, slot replica.Slot) bool {
	if id < singles {
		return id == single(slot)
	}
	return atomic.LoadUint64(&t.members(id)[slot/64])>>(slot%64)&1 != 0
}

// within reports whether all ranks of set a are in set b.
func (t *setTable) within(a, b uint32) bool {
	switch {
	case a == b || a == 0:
		return true
	case a < singles:
		return t.has(b, replica.Slot(a-1))
	case b < singles:
		return false // an interned set has two ranks at least
	}
	some, other := t.members(a), t.members(b)
	for i := range some {
		if atomic.LoadUint64(&some[i])&^atomic.LoadUint64(&other[i]) != 0 {
			return false
		}
	}
	return true
}

// load copies the set into dst, which has t.words words.
func (t *setTable) load(id uint32, dst []uint64) {
	if id < singles {
		clear(dst)
		if id != 0 {
			s := id - 1
			dst[s/64] = 1 << (s % 64)
		}
		return
	}
	m := t.members(id)
	for i := range dst {
		dst[i] = atomic.LoadUint64(&m[i])
	}
}

func (t *setTable) ref(id uint32) *atomic.Int32 {
	n := id - singles
	return &t.chunks[n>>chunkBits].Load().refs[n&(chunkSets-1)]
}

// change returns the id of set from with slot added or removed, with one reference taken on
// it. It returns from itself when nothing changes, and 0 when an addition finds no free id.
func (t *setTable) change(from uint32, slot replica.Slot, add bool) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.load(from, t.tmp)
	bit := uint64(1) << (slot % 64)
	if add {
		t.tmp[slot/64] |= bit
	} else {
		t.tmp[slot/64] &^= bit
	}
	count, last := 0, 0
	for i, w := range t.tmp {
		if w != 0 {
			count += bits.OnesCount64(w)
			last = i*64 + bits.TrailingZeros64(w)
		}
	}
	switch count {
	case 0:
		return 0
	case 1:
		return single(replica.Slot(last))
	}
	return t.intern()
}

// intern returns the id of the set in tmp with a reference taken.
//
// guarded by mu
func (t *setTable) intern() uint32 {
	mask := uint32(len(t.index) - 1)
	at := uint32(hashWords(t.tmp)) & mask
	for ; t.index[at] != 0; at = (at + 1) & mask {
		if id := t.index[at]; t.equal(id) {
			t.ref(id).Add(1)
			return id
		}
	}
	id := t.fresh()
	if id == 0 {
		t.full.Add(1)
		return 0
	}
	words := t.members(id)
	for i, w := range t.tmp {
		atomic.StoreUint64(&words[i], w)
	}
	t.ref(id).Store(1)
	t.index[at] = id
	t.live++
	if 2*t.live > len(t.index) {
		t.grow()
	}
	return id
}

// equal compares the set id with tmp.
//
// guarded by mu
func (t *setTable) equal(id uint32) bool {
	for i, w := range t.members(id) {
		if w != t.tmp[i] {
			return false
		}
	}
	return true
}

// fresh returns an unused id, or 0 when there is none.
//
// guarded by mu
func (t *setTable) fresh() uint32 {
	if len(t.free) == 0 && (len(t.quiet) >= reuseBatch || t.next == t.limit) {
		t.epoch.Add(1)
		t.free, t.quiet = t.quiet, t.free
	}
	if n := len(t.free); n > 0 {
		id := t.free[n-1]
		t.free = t.free[:n-1]
		return id
	}
	if t.next == t.limit {
		return 0
	}
	id := t.next
	if c := (id - singles) >> chunkBits; t.chunks[c].Load() == nil {
		t.chunks[c].Store(&setChunk{words: make([]uint64, chunkSets*t.words)})
		t.bytes.Add(int64(chunkSets * (8*t.words + 4)))
	}
	t.next++
	return id
}

// release gives one reference back; the last one frees the id.
func (t *setTable) release(id uint32) {
	if id < singles {
		return
	}
	t.mu.Lock()
	if t.ref(id).Add(-1) == 0 {
		t.forget(id)
	}
	t.mu.Unlock()
}

// forget takes a set without references out of the index.
//
// guarded by mu
func (t *setTable) forget(id uint32) {
	mask := uint32(len(t.index) - 1)
	at := uint32(hashWords(t.members(id))) & mask
	for t.index[at] != id {
		at = (at + 1) & mask
	}
	t.index[at] = 0
	for gap, i := at, (at+1)&mask; t.index[i] != 0; i = (i + 1) & mask {
		home := uint32(hashWords(t.members(t.index[i]))) & mask
		if (i-home)&mask >= (i-gap)&mask {
			t.index[gap], t.index[i] = t.index[i], 0
			gap = i
		}
	}
	t.live--
	t.quiet = append(t.quiet, id)
}

// grow doubles the index.
//
// guarded by mu
func (t *setTable) grow() {
	old := t.index
	t.index = make([]uint32, 2*len(old))
	mask := uint32(len(t.index) - 1)
	for _, id := range old {
		if id == 0 {
			continue
		}
		at := uint32(hashWords(t.members(id))) & mask
		for t.index[at] != 0 {
			at = (at + 1) & mask
		}
		t.index[at] = id
	}
	t.bytes.Add(4 * int64(len(old)))
}

func hashWords(words []uint64) uint64 {
	var h uint64
	for _, w := range words {
		hi, lo := bits.Mul64(h^w^0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
		h = hi ^ lo
	}
	return h ^ h>>32
}

// writer changes sets on behalf of one rank and remembers its last changes: the blocks of an
// event mostly go from one set to one other. A remembered pair is pinned by a reference on
// both sides, so that the common case counts references without a lock.
type writer struct {
	slot  replica.Slot
	adds  memo
	drops memo
}

type memo struct{ from, to uint32 }

// with returns the set from plus the writer's slot, one reference moved from the old set to
// the new one. It returns from when the slot is in it, and 0 when no id is free.
func (w *writer) with(t *setTable, from uint32) uint32 {
	if from == 0 {
		return single(w.slot)
	}
	if from == single(w.slot) {
		return from
	}
	if w.adds.from != from {
		if t.has(from, w.slot) {
			return from
		}
		if !w.learn(t, &w.adds, from, true) {
			return 0
		}
	}
	return w.adds.move(t)
}

// without returns the set from less the writer's slot, and false when the slot is not in it. Where no id is free for that set, it
// returns the first of the ranks that are left and calls lost for each of the others, while from still has its meaning: to be taken for
// one that holds nothing costs a rank a hit, to be taken for one that holds blocks which it has not would be wrong.
func (w *writer) without(t *setTable, from uint32, lost func(replica.Slot)) (uint32, bool) {
	if from == single(w.slot) {
		return 0, true
	}
	if w.drops.from != from {
		if from < singles || !t.has(from, w.slot) {
			return from, false
		}
		if !w.learn(t, &w.drops, from, false) {
			return w.withoutOthers(t, from, lost), true
		}
	}
	return w.drops.move(t), true
}

// withoutOthers is the way of without when no id is free.
func (w *writer) withoutOthers(t *setTable, from uint32, lost func(replica.Slot)) (to uint32) {
	for i, word := range t.members(from) {
		for ; word != 0; word &= word - 1 {
			switch slot := replica.Slot(i*64 + bits.TrailingZeros64(word)); {
			case slot == w.slot:
			case to == 0:
				to = single(slot)
			default:
				lost(slot)
			}
		}
	}
	t.release(from)
	return to
}

// learn replaces the remembered pair by the pair that starts at from.
func (w *writer) learn(t *setTable, m *memo, from uint32, add bool) bool {

	to := t.change(from, w.slot, add)
	if to == 0 {
		return false
	}
	if from >= singles {
		t.ref(from).Add(1)
	}
	old := *m
	*m = memo{from, to}
	t.release(old.from)
	t.release(old.to)
	return true
}

// forget gives the pins back.
func (w *writer) forget(t *setTable) {
	for _, m := range []*memo{&w.adds, &w.drops} {
		t.release(m.from)
		t.release(m.to)
		*m = memo{}
	}
}

// move takes a reference from one side to the other; the pins keep both alive.
func (m *memo) move(t *setTable) uint32 {
	if m.to >= singles {
		t.ref(m.to).Add(1)
	}
	if m.from >= singles {
		t.ref(m.from).Add(-1)
	}
	return m.to
}
