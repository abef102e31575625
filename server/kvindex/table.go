package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/blockhash"
)

// A slot word names a block and who holds it: the tag above (with the shard's number 49 bits
// of the spread hash), the set id below. Zero is an empty slot; a tag with set id zero is a block that nobody holds
// any more, kept so that blocks which were placed past it are still found.
const (
	shardBits   = 8
	shards      = 1 << shardBits
	idBits      = 22
	idMask      = 1<<idBits - 1
	bucketSlots = 8 // a cache line
	minBuckets  = 2
	maxLoad     = 0.75
	newLoad     = 0.60
)

// spread moves the entropy of h into its upper bits. Block hashes are well mixed already; the
// multiplication keeps the table sound when somebody's are not.
func spread(h blockhash.Hash) uint64 { return uint64(h) * 0x9E3779B97F4A7C15 }

// tagOf returns the slot word of a spread hash with set id zero; it is never the empty word.
func tagOf(m uint64) uint64 { return (m<<shardBits | 1<<idBits) &^ idMask }

// plane maps blocks to the set of ranks that hold them. Writers lock one shard; readers
// take the shard's table from an atomic pointer and read slots atomically.
type plane struct {
	tabs  [shards]atomic.Pointer[table]
	parts [shards]shard
	// held counts (rank, block) pairs; bytes the memory of the tables.
	held  atomic.Int64
	bytes atomic.Int64
	sets  *setTable
}

type shard struct {
	mu   sync.Mutex
	live int // slots with a set; guarded by mu
	used int // slots that are not empty; guarded by mu
	_    [40]byte
}

// table is one shard's slots. A block lies in its home bucket or, when that is full, in the
// first one after it that has room.
type table struct {
	buckets uint64
	slots   []uint64
}

func (t *table) home(tag uint64) uint64 {
	b, _ := bits.Mul64(tag, t.buckets)
	return b
}

// bucket returns the slots of bucket b.
func (t *table) bucket(b uint64) *[bucketSlots]uint64 {
	return (*[bucketSlots]uint64)(t.slots[b*bucketSlots:])
}

// get returns the set id stored for tag, or 0.
func (t *table) get(tag uint64) uint32 {
	for b := t.home(tag); ; {
		line := t.bucket(b)
		open := false
		for i := range line {
			w := atomic.LoadUint64(&line[i])
			if w&^idMask == tag {
				return uint32(w & idMask)
			}
			open = open || w == 0
		}
		if open {
			return 0
		}
		if b++; b == t.buckets {
			b = 0
		}
	}
}

// touch loads the cache line where the search for m begins, so that several searches can wait
// for memory at the same time.
func (p *plane) touch(m uint64) uint64 {
	t := p.tabs[m>>(64-shardBits)].Load()
	if t == nil {
		return 0
	}
	return atomic.LoadUint64(&t.slots[t.home(tagOf(m))*bucketSlots])
}

// get returns the id of the set that holds the block, or 0.
func (p *plane) get(m uint64) uint32 {
	t := p.tabs[m>>(64-shardBits)].Load()
	if t == nil {
		return 0
	}
	return t.get(tagOf(m))
}

// place is where a tag lies or may be put.
type place struct {
	slot  *uint64
	word  uint64
	found bool
}

// find looks for tag and, when it is absent, for the first slot that may take it. Only the
// shard's writer calls it.
func (t *table) find(tag uint64) place {
	var free place
	for b := t.home(tag); ; {
		line := t.bucket(b)
		open := false
		for i := range line {
			w := line[i]
			if w&^idMask == tag {
				return place{&line[i], w, true}
			}
			if w&idMask == 0 && free.slot == nil {
				free = place{&line[i], w, false}
			}
			open = open || w == 0
		}
		if open {
			return free
		}
		if b++; b == t.buckets {
			b = 0
		}
	}
}

// added is what became of an addition.
type added uint8

const (
	addNew  added = iota // the rank became a holder
	addDup               // it was one already
	addFull              // no set id is free
)

// add makes the writer's rank a holder of the block.
func (p *plane) add(m uint64, w *writer) added {
	n := m >> (64 - shardBits)
	s := &p.parts[n]
	tag := tagOf(m)
	s.mu.Lock()
	t := p.tabs[n].Load()
	if t == nil || float64(s.used+1) > maxLoad*float64(len(t.slots)) {
		t = p.rebuild(n, t, s)
	}
	at := t.find(tag)
	from := uint32(at.word & idMask)
	if !at.found {
		from = 0
	}
	to := w.with(p.sets, from)
	if to == 0 {
		s.mu.Unlock()
		return addFull
	}
	if to == from {
		s.mu.Unlock()
		return addDup
	}
	if from == 0 {
		s.live++
		if at.word == 0 {
			s.used++
		}
	}
	atomic.StoreUint64(at.slot, tag|uint64(to))
	s.mu.Unlock()
	return addNew
}

// remove ends the writer's hold of the block; it reports whether it was a holder.
func (p *plane) remove(m uint64, w *writer) bool {
	n := m >> (64 - shardBits)
	s := &p.parts[n]
	tag := tagOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := p.tabs[n].Load()
	if t == nil {
		return false
	}
	at := t.find(tag)
	if !at.found || at.word&idMask == 0 {
		return false
	}
	from := uint32(at.word & idMask)
	to, ok := w.without(p.sets, from)
	if !ok {
		return false
	}
	word := tag | uint64(to)
	if to == 0 {
		s.live--
		if t.mayEmpty(tag, at.slot) {
			s.used--
			word = 0
		}
	}
	atomic.StoreUint64(at.slot, word)
	return true
}

// mayEmpty reports whether the slot's bucket has an empty slot already: then no search goes
// past it and the slot may become empty too.
func (t *table) mayEmpty(tag uint64, slot *uint64) bool {
	for b := t.home(tag); ; {
		line := t.bucket(b)
		here, open := false, false
		for i := range line {
			here = here || &line[i] == slot
			open = open || line[i] == 0
		}
		if here || open {
			return here && open
		}
		if b++; b == t.buckets {
			b = 0
		}
	}
}

// rebuild gives the shard a table with room for what lives in it and publishes that.
func (p *plane) rebuild(n uint64, old *table, s *shard) *table {
	want := uint64(float64(s.live+1)/(newLoad*bucketSlots)) + 1
	t := &table{buckets: max(want, minBuckets)}
	t.slots = hugeSlice(int(t.buckets) * bucketSlots)
	if old != nil {
		for _, w := range old.slots {
			if w&idMask != 0 {
				*t.find(w &^ idMask).slot = w
			}
		}
		p.bytes.Add(-8 * int64(len(old.slots)))
	}
	s.used = s.live
	p.bytes.Add(8 * int64(len(t.slots)))
	p.tabs[n].Store(t)
	return t
}
