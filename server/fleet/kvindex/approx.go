package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Routed notes that a prompt was sent to a rank that publishes no events: the rank is taken to
// hold its blocks until as many others as its cache has room for were routed there later. For
// ranks with events it does nothing.
func (ix *Index) Routed(slot replica.Slot, hashes []blockhash.Hash) {
	if len(hashes) == 0 {
		return
	}
	ix.locked(slot, func(r *rank) {
		if r.state == kvblock.FeedNone && len(r.parts) == 0 {
			r.routed(hashes)
		}
	})
}

// routed refreshes the hashes, the last one first, so that like in the engine the end of a
// chain is forgotten before its beginning.
func (r *rank) routed(hashes []blockhash.Hash) {
	if r.approx == nil {
		r.approx = newLRU()
	}
	capacity := r.info.Capacity
	if capacity <= 0 {
		capacity = r.ix.config.DefaultCapacity
	}
	hashes = hashes[:min(len(hashes), capacity)]
	before := r.approx.len()
	gpu := r.ix.tiers[kvblock.TierGPU]
	for i := len(hashes) - 1; i >= 0; i-- {
		if r.approx.refresh(hashes[i]) && gpu.add(spread(hashes[i]), &r.writer) == addNew {
			gpu.held.Add(1)
		}
	}
	for r.approx.len() > capacity {
		if key := r.approx.evict(); gpu.remove(spread(key), &r.writer) {
			gpu.held.Add(-1)
		}
	}
	r.ix.entries.Add(int64(r.approx.len() - before))
}

// dropApprox forgets what was only routed.
func (r *rank) dropApprox() {
	if r.approx == nil {
		return
	}
	gpu := r.ix.tiers[kvblock.TierGPU]
	r.ix.entries.Add(int64(-r.approx.len()))
	for r.approx.len() > 0 {
		if key := r.approx.evict(); gpu.remove(spread(key), &r.writer) {
			gpu.held.Add(-1)
		}
	}
	r.approx = nil
}

// lru keeps keys in order of their last use, in two flat arrays without pointers.
type lru struct {
	index revmap // key to node number, which is never zero
	nodes []node // nodes[0] is the ring's head: next is the oldest, prev the newest
	spare uint32 // first unused node, linked by next; 0: none
}

type node struct {
	key        blockhash.Hash
	prev, next uint32
}

func newLRU() *lru { return &lru{nodes: make([]node, 1, 64)} }

func (l *lru) len() int { return l.index.live }

// refresh makes key the newest and reports whether it was not there.
func (l *lru) refresh(key blockhash.Hash) bool {
	l.index.room(1)
	id := revID(kvblock.EngineHash(key))
	if _, at := l.index.find(id); at != nil {
		n := uint32(*at)
		l.unlink(n)
		l.append(n)
		return false
	}
	n := l.spare
	if n != 0 {
		l.spare = l.nodes[n].next
	} else {
		n = uint32(len(l.nodes))
		l.nodes = append(l.nodes, node{})
	}
	l.nodes[n].key = key
	l.append(n)
	l.index.add(id, blockhash.Hash(n))
	return true
}

// evict takes the oldest key out and returns it. There must be one.
func (l *lru) evict() blockhash.Hash {
	n := l.nodes[0].next
	key := l.nodes[n].key
	l.unlink(n)
	l.nodes[n].next = l.spare
	l.spare = n
	l.index.drop(revID(kvblock.EngineHash(key)))
	return key
}

func (l *lru) unlink(n uint32) {
	prev, next := l.nodes[n].prev, l.nodes[n].next
	l.nodes[prev].next, l.nodes[next].prev = next, prev
}

func (l *lru) append(n uint32) {
	last := l.nodes[0].prev
	l.nodes[n].prev, l.nodes[n].next = last, 0
	l.nodes[last].next, l.nodes[0].prev = n, n
}

func (l *lru) bytes() int64 { return l.index.bytes() + 16*int64(cap(l.nodes)) }
