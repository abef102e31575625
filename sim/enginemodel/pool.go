package enginemodel

import "github.com/kvpilot/kvpilot/server/domain/blockhash"

const none = int32(-1)

// block is one KV block. Free blocks form a list, least recently freed first; a free block that has
// a key is still cached. Blocks with equal keys form a ring, in the order in which they were named.
type block struct {
	key                  blockhash.Hash // 0 for none
	refs                 int32
	prev, next           int32 // neighbours in the free list
	olderTwin, newerTwin int32 // neighbours in the ring of blocks with the same key
}

// Pool is KV memory. One machine owns it; an oracle's machines share one. It is not safe for
// concurrent use.
type Pool struct {
	blocks     []block
	cached     map[blockhash.Hash]int32 // the oldest of its ring
	head, tail int32
	free       int
	// reserved counts free blocks that a planned run of steps needs.
	reserved int
}

// NewPool returns n free blocks.
func NewPool(n int) *Pool {
	p := &Pool{blocks: make([]block, n), cached: make(map[blockhash.Hash]int32, n), head: none, tail: none}
	for i := range p.blocks {
		p.push(int32(i))
	}
	return p
}

// Size is the number of blocks, Free the number of blocks that no sequence uses.
func (p *Pool) Size() int { return len(p.blocks) }

// Free counts the blocks that no sequence uses.
func (p *Pool) Free() int { return p.free }

// Match counts the leading keys that are cached.
func (p *Pool) Match(keys []blockhash.Hash) int {
	for i, k := range keys {
		if _, ok := p.cached[k]; !ok {
			return i
		}
	}
	return len(keys)
}

// available counts the blocks that may be taken.
func (p *Pool) available() int { return p.free - p.reserved }

// touch takes a reference on a cached block.
func (p *Pool) touch(i int32) {
	b := &p.blocks[i]
	if b.refs == 0 {
		p.unlink(i)
	}
	b.refs++
}

// take gives a block for new content: the least recently freed. It returns the key that the block
// had, 0 for none. The caller has checked that a block is free.
func (p *Pool) take() (i int32, evicted blockhash.Hash) {
	i = p.head
	p.unlink(i)
	b := &p.blocks[i]
	b.refs = 1
	evicted = b.key
	if evicted != 0 {
		p.forget(i)
	}
	return i, evicted
}

// release drops a reference; the block stays cached until it is taken.
func (p *Pool) release(i int32) {
	b := &p.blocks[i]
	if b.refs--; b.refs == 0 {
		p.push(i)
	}
}

// name makes block i, which has no key, findable under key. Of several blocks with one key the one
// named first is found.
func (p *Pool) name(i int32, key blockhash.Hash) {
	b := &p.blocks[i]
	b.key = key
	first, ok := p.cached[key]
	if !ok {
		p.cached[key] = i
		b.olderTwin, b.newerTwin = i, i
		return
	}
	last := p.blocks[first].olderTwin
	b.olderTwin, b.newerTwin = last, first
	p.blocks[last].newerTwin = i
	p.blocks[first].olderTwin = i
}

// forget removes block i's key.
func (p *Pool) forget(i int32) {
	b := &p.blocks[i]
	switch {
	case b.newerTwin == i:
		delete(p.cached, b.key)
	case p.cached[b.key] == i:
		p.cached[b.key] = b.newerTwin
		fallthrough
	default:
		p.blocks[b.olderTwin].newerTwin = b.newerTwin
		p.blocks[b.newerTwin].olderTwin = b.olderTwin
	}
	b.key = 0
}

// Clear forgets every key. It refuses while a block is in use.
func (p *Pool) Clear() bool {
	if p.free != len(p.blocks) {
		return false
	}
	clear(p.cached)
	for i := range p.blocks {
		p.blocks[i].key = 0
	}
	return true
}

func (p *Pool) push(i int32) {
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

func (p *Pool) unlink(i int32) {
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
