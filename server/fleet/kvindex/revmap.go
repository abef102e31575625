package kvindex

import (
	"math/bits"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Entries lie in buckets of eight: a cache line of name words, then one of keys (zero: the block
// cannot be keyed). A name word is 56 bits of the spread engine hash, and below them the number
// of copies (zero: the entry is free), the mark of a guess, and the bucket's passed mark, as in
// the lookup table.
const (
	refMask  = 0xFF // all but the name
	refCount = 0x3F
	// refGuess marks an entry that a snapshot brought and no event has named since.
	refGuess  = 0x40
	refPassed = 0x80
	revBucket = 2 * bucketSlots // words
	revEntry  = 16              // bytes, in snapshots
)

// revmap maps an engine's block names to own keys and counts the copies of each block. It is
// a flat table for one user at a time.
type revmap struct {
	words   []uint64
	buckets uint64
	live    int
	limit   int // live entries after which it grows
	marks   int
	// more has the copies of a block beyond 63, which is rarely ever needed.
	more map[uint64]uint32
}

// revID returns the name bits of an engine hash: spread, which is a bijection, less one byte.
func revID(h kvblock.EngineHash) uint64 {
	x := uint64(h)
	x = (x ^ x>>32) * 0x9E3779B97F4A7C15
	x = (x ^ x>>29) * 0xBF58476D1CE4E5B9
	return x &^ refMask
}

func (m *revmap) home(id uint64) uint64 {
	b, _ := bits.Mul64(id, m.buckets)
	return b
}

// line returns the names and keys of bucket b.
func (m *revmap) line(b uint64) *[revBucket]uint64 {
	return (*[revBucket]uint64)(m.words[b*revBucket:])
}

func (m *revmap) after(b uint64) uint64 {
	if b++; b == m.buckets {
		return 0
	}
	return b
}

func revClass(id uint64) uint64 { return id >> 8 % bucketSlots }

// named reports whether the name word w is the word of id.
func named(w, id uint64) bool { return (w^id)&^refMask == 0 && w&refCount != 0 }

// touch loads the cache lines where the search for id begins.
func (m *revmap) touch(id uint64) uint64 {
	if m.buckets == 0 {
		return 0
	}
	line := m.line(m.home(id))
	return line[0] + line[bucketSlots]
}

// find returns the name and key of id, or nil.
func (m *revmap) find(id uint64) (name, key *uint64) {
	if m.live == 0 {
		return nil, nil
	}
	home := m.home(id)
	for b := home; ; {
		line := m.line(b)
		for i := range bucketSlots {
			if named(line[i], id) {
				return &line[i], &line[i+bucketSlots]
			}
		}
		if line[revClass(id)]&refPassed == 0 {
			return nil, nil
		}
		if b = m.after(b); b == home {
			return nil, nil
		}
	}
}

// put enters id, which is not there, with the low bits of word. Room must have been made.
func (m *revmap) put(id, word, key uint64) {
	m.live++
	for b := m.home(id); ; {
		line := m.line(b)
		for i := range bucketSlots {
			if line[i]&refCount == 0 {
				line[i] = line[i]&refPassed | id | word&(refCount|refGuess)
				line[i+bucketSlots] = key
				return
			}
		}
		if at := &line[revClass(id)]; *at&refPassed == 0 {
			*at |= refPassed
			m.marks++
		}
		b = m.after(b)
	}
}

// each calls f with the name and key words of all entries, in the order of their places. f may
// free the entry.
func (m *revmap) each(f func(name, key *uint64)) {
	for b := range m.buckets {
		line := m.line(b)
		for i := range bucketSlots {
			if line[i]&refCount != 0 {
				f(&line[i], &line[i+bucketSlots])
			}
		}
	}
}

// get returns the key of id and whether there is an entry.
func (m *revmap) get(id uint64) (blockhash.Hash, bool) {
	name, key := m.find(id)
	if name == nil {
		return 0, false
	}
	return blockhash.Hash(*key), true
}

// room makes sure that n more entries fit.
func (m *revmap) room(n int) {
	if m.live+n > m.limit || m.marks*8 > int(m.buckets)*maxPassed {
		m.resize((m.live + n) * 100 / freshLoad)
	}
}

func (m *revmap) resize(n int) {
	old := *m
	m.buckets = uint64(n/bucketSlots) + 2
	m.words = hugeSlice(int(m.buckets) * revBucket)
	m.live, m.marks, m.limit = 0, 0, int(m.buckets)*bucketSlots*fullLoad/100
	old.each(func(name, key *uint64) { m.put(*name&^refMask, *name, *key) })
	discard(old.words)
}

// add counts one more copy of id. A new entry has the given key. It returns the place of the
// key and whether the entry is new. Room must have been made.
func (m *revmap) add(id uint64, key blockhash.Hash) (at *uint64, fresh bool) {
	name, at := m.find(id)
	switch {
	case name == nil:
		m.put(id, 1, uint64(key))
		return nil, true
	case *name&refGuess != 0: // the first word from its engine: counting begins here
		*name = *name&^(refGuess|refCount) | 1
		delete(m.more, id)
	case *name&refCount == refCount:
		if m.more == nil {
			m.more = map[uint64]uint32{}
		}
		m.more[id]++
	default:
		*name++
	}
	return at, false
}

// drop counts one copy less. It returns the key and whether that was the last copy (then the
// entry is gone); known is false when there was no entry.
func (m *revmap) drop(id uint64) (key blockhash.Hash, last, known bool) {
	name, at := m.find(id)
	if name == nil {
		return 0, false, false
	}
	key = blockhash.Hash(*at)
	if n := m.more[id]; n > 0 {
		if m.more[id] = n - 1; n == 1 {
			delete(m.more, id)
		}
		return key, false, true
	}
	if *name&refCount > 1 {
		*name--
		return key, false, true
	}
	m.free(name)
	return key, true, true
}

// free takes an entry out.
func (m *revmap) free(name *uint64) {
	*name &= refPassed
	m.live--
}

func (m *revmap) bytes() int64 { return 8*int64(cap(m.words)) + 48*int64(len(m.more)) }
