package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A slot word names a block and its holders. From the top: the tag (with the shard's number 49
// bits of the spread hash), the bucket's passed mark, and the set id; a slot with set id zero is
// free, whatever its tag. Blocks of tags are of eight classes; the passed mark of a bucket's i-th
// slot means that a block of class i may lie past this bucket, which was full once. Marks are
// only taken back when the table is rebuilt; in a small one all buckets may carry the same, so a
// search ends where it began.
const (
	shardBits   = 6
	shards      = 1 << shardBits
	idBits      = 20
	idMask      = 1<<idBits - 1
	passed      = 1 << idBits
	tagShift    = idBits + 1
	bucketSlots = 8 // a cache line
	minBuckets  = 2
	// Loads after which a table grows, and with which it begins, in percent.
	fullLoad  = 75
	freshLoad = 50
	// maxPassed is how many marks a table has per 8 buckets before it is rebuilt without.
	maxPassed = 8
)

// spread moves the entropy of h into its upper bits. Block hashes are well mixed already; the
// multiplication keeps the table sound when an input's are not.
func spread(h blockhash.Hash) uint64 { return uint64(h) * 0x9E3779B97F4A7C15 }

// tagOf returns the slot word of a spread hash with no mark and set id zero.
func tagOf(m uint64) uint64 { return m << shardBits &^ (1<<tagShift - 1) }

// classOf returns the class of a tag.
func classOf(tag uint64) uint64 { return tag >> tagShift % bucketSlots }

// tagged reports whether the slot word w holds the block of tag.
func tagged(w, tag uint64) bool { return (w^tag)>>tagShift == 0 && w&idMask != 0 }

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

// newPlane returns an empty plane. Its shards begin with one table that holds nothing for ever.
func newPlane(sets *setTable) *plane {
	p := &plane{sets: sets}
	none := &table{buckets: 1, slots: make([]uint64, bucketSlots)}
	for n := range p.tabs {
		p.tabs[n].Store(none)
	}
	return p
}

type shard struct {
	mu    sync.Mutex
	live  int // slots in use; guarded by mu
	limit int // live slots after which the table grows; guarded by mu
	marks int // passed marks; guarded by mu
	_     [32]byte
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
	home := t.home(tag)
	for b := home; ; {
		line := t.bucket(b)
		for i := range line {
			if w := atomic.LoadUint64(&line[i]); tagged(w, tag) {
				return uint32(w & idMask)
			}
		}
		if atomic.LoadUint64(&line[classOf(tag)])&passed == 0 {
			return 0
		}
		if b = t.after(b); b == home {
			return 0
		}
	}
}

// after returns the bucket that follows b.
func (t *table) after(b uint64) uint64 {
	if b++; b == t.buckets {
		return 0
	}
	return b
}

// touch loads the cache line where the search for m begins, so that several searches can wait
// for memory at the same time.
func (p *plane) touch(m uint64) uint64 {
	t := p.tabs[m>>(64-shardBits)].Load()
	return atomic.LoadUint64(&t.slots[t.home(tagOf(m))*bucketSlots])
}

// get returns the id of the set that holds the block, or 0.
func (p *plane) get(m uint64) uint32 {
	t := p.tabs[m>>(64-shardBits)].Load()
	return t.get(tagOf(m))
}

// find returns the slot of tag, or nil. Only the shard's writer calls it.
func (t *table) find(tag uint64) *uint64 {
	home := t.home(tag)
	for b := home; ; {
		line := t.bucket(b)
		for i := range line {
			if tagged(line[i], tag) {
				return &line[i]
			}
		}
		if line[classOf(tag)]&passed == 0 {
			return nil
		}
		if b = t.after(b); b == home {
			return nil
		}
	}
}

// free returns a free slot for tag, which is not in the table, and the number of marks that
// were set on the way to it.
func (t *table) free(tag uint64) (slot *uint64, marks int) {
	for b := t.home(tag); ; {
		line := t.bucket(b)
		for i := range line {
			if line[i]&idMask == 0 {
				return &line[i], marks
			}
		}
		if at := &line[classOf(tag)]; *at&passed == 0 {
			atomic.StoreUint64(at, *at|passed)
			marks++
		}
		b = t.after(b)
	}
}

// added is the result of an addition.
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
	if slot := t.find(tag); slot != nil {
		from := uint32(*slot & idMask)
		to := w.with(p.sets, from)
		if to != from && to != 0 {
			atomic.StoreUint64(slot, *slot&^idMask|uint64(to))
		}
		s.mu.Unlock()
		switch to {
		case 0:
			return addFull
		case from:
			return addDup
		}
		return addNew
	}
	if s.live >= s.limit {
		t = p.rebuild(n, t, s, 1)
	}
	slot, marks := t.free(tag)
	atomic.StoreUint64(slot, tag|*slot&passed|uint64(single(w.slot)))
	s.live++
	if s.marks += marks; s.marks*8 > int(t.buckets)*maxPassed {
		p.rebuild(n, t, s, 1)
	}
	s.mu.Unlock()
	return addNew
}

// remove ends the writer's rank's hold of the block; it reports whether it was a holder.
func (p *plane) remove(m uint64, w *writer) bool {
	n := m >> (64 - shardBits)
	s := &p.parts[n]
	s.mu.Lock()
	slot := p.tabs[n].Load().find(tagOf(m))
	if slot == nil {
		s.mu.Unlock()
		return false
	}
	to, ok := w.without(p.sets, uint32(*slot&idMask), func(replica.Slot) { p.held.Add(-1) })
	if ok {
		atomic.StoreUint64(slot, *slot&^idMask|uint64(to))
		if to == 0 {
			s.live--
		}
	}
	s.mu.Unlock()
	return ok
}

// reserve makes room for more blocks, so that loading them does not grow the tables in steps.
func (p *plane) reserve(more int64) {
	each := int(more / shards)
	if each < bucketSlots {
		return
	}
	for n := range uint64(shards) {
		s := &p.parts[n]
		s.mu.Lock()
		if s.live+each > s.limit {
			p.rebuild(n, p.tabs[n].Load(), s, each)
		}
		s.mu.Unlock()
	}
}

// rebuild gives the shard a table with room for its live entries and for more, and publishes that.
func (p *plane) rebuild(n uint64, old *table, s *shard, more int) *table {
	want := uint64((s.live+more)*100/(freshLoad*bucketSlots)) + 1
	t := &table{buckets: max(want, minBuckets)}
	t.slots = hugeSlice(int(t.buckets) * bucketSlots)
	s.limit, s.marks = len(t.slots)*fullLoad/100, 0
	for _, w := range old.slots {
		if w&idMask != 0 {
			slot, marks := t.free(w &^ (1<<tagShift - 1))
			*slot = *slot&passed | w&^passed
			s.marks += marks
		}
	}
	if old.buckets >= minBuckets {
		p.bytes.Add(-8 * int64(len(old.slots)))
	}
	p.bytes.Add(8 * int64(len(t.slots)))
	p.tabs[n].Store(t)
	return t
}
