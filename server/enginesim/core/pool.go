package core

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Digest is the engine's own name for a block: a hash over its tokens and all before them.
type Digest struct{ Hi, Lo uint64 }

// Bytes is the digest as a big-endian string.
func (d Digest) Bytes() [16]byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.Hi)
	binary.BigEndian.PutUint64(b[8:], d.Lo)
	return b
}

// digest names the block of tokens that follows parent; extra holds what else tells it apart.
func digest(seed uint64, parent Digest, tokens []uint32, extra []byte) Digest {
	buf := make([]byte, 0, 16+4*len(tokens)+len(extra))
	buf = binary.BigEndian.AppendUint64(buf, parent.Hi)
	buf = binary.BigEndian.AppendUint64(buf, parent.Lo)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	h := xxh3.Hash128Seed(append(buf, extra...), seed)
	return Digest(h)
}

const none = int32(-1)

// block is one KV block. Free blocks form a list, least recently freed first; a free block that
// has a digest is still cached.
type block struct {
	digest     Digest
	hashed     bool
	refs       int32
	prev, next int32 // neighbours in the free list
	twin       int32 // the next block with the same digest
}

// pool is the rank's KV memory. It is not safe for concurrent use.
type pool struct {
	blocks     []block
	cached     map[Digest]int32 // the first of the twins
	head, tail int32
	free       int
	// evicted is told about each cached block that is reused for something else.
	evicted func(Digest)
}

func newPool(n int, evicted func(Digest)) *pool {
	p := &pool{blocks: make([]block, n), cached: map[Digest]int32{}, head: none, tail: none, evicted: evicted}
	for i := range p.blocks {
		p.blocks[i].twin = none
		p.push(int32(i))
	}
	return p
}

// lookup finds a cached block.
func (p *pool) lookup(d Digest) (int32, bool) {
	i, ok := p.cached[d]
	return i, ok
}

// touch takes another reference on a cached block.
func (p *pool) touch(i int32) {
	b := &p.blocks[i]
	if b.refs == 0 {
		p.unlink(i)
	}
	b.refs++
}

// take gives a block for new content, evicting the least recently freed; the caller made sure
// that one is free.
func (p *pool) take() int32 {
	i := p.head
	p.unlink(i)
	p.blocks[i].refs = 1
	if p.blocks[i].hashed {
		d := p.blocks[i].digest
		p.forget(i)
		p.evicted(d)
	}
	return i
}

// release drops a reference; the block stays cached until it is taken.
func (p *pool) release(i int32) {
	b := &p.blocks[i]
	if b.refs--; b.refs == 0 {
		p.push(i)
	}
}

// name makes block i findable under d.
func (p *pool) name(i int32, d Digest) {
	b := &p.blocks[i]
	b.digest, b.hashed, b.twin = d, true, none
	if first, ok := p.cached[d]; ok {
		b.twin = p.blocks[first].twin
		p.blocks[first].twin = i
		return
	}
	p.cached[d] = i
}

// forget takes block i's name away.
func (p *pool) forget(i int32) {
	b := &p.blocks[i]
	first := p.cached[b.digest]
	switch {
	case first != i:
		at := first
		for p.blocks[at].twin != i {
			at = p.blocks[at].twin
		}
		p.blocks[at].twin = b.twin
	case b.twin != none:
		p.cached[b.digest] = b.twin
	default:
		delete(p.cached, b.digest)
	}
	b.hashed, b.twin = false, none
}

// clear forgets every name; it refuses while any block is in use.
func (p *pool) clear() bool {
	if p.free != len(p.blocks) {
		return false
	}
	clear(p.cached)
	for i := range p.blocks {
		p.blocks[i].hashed, p.blocks[i].twin = false, none
	}
	return true
}

func (p *pool) push(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.tail, none
	if p.tail == none {
		p.head = i
	} else {
		p.blocks[p.tail].next = i
	}
	p.tail = i
	p.free++
}

func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	if b.prev == none {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.free--
}
