package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// lru keeps keys in order of their last use, in two flat arrays without pointers. The zero lru is empty.
type lru struct {
	index revmap // key to node number, which is never zero
	nodes []node // nodes[0] is the ring's head: next is the oldest, prev the newest
	spare uint32 // first unused node, linked by next; 0: none
}

type node struct {
	key        blockhash.Hash
	prev, next uint32
}

func (l *lru) len() int { return l.index.live }

// oldest returns the oldest key. There must be one.
func (l *lru) oldest() blockhash.Hash { return l.nodes[l.nodes[0].next].key }

// refresh makes key the newest.
func (l *lru) refresh(key blockhash.Hash) {
	if _, at := l.index.find(revID(kvblock.EngineHash(key))); at != nil {
		n := uint32(*at)
		l.unlink(n)
		l.link(n, 0)
		return
	}
	l.link(l.enter(key), 0)
}

// insertOlder enters key as the next older one of a key that is there.
func (l *lru) insertOlder(key, than blockhash.Hash) {
	_, at := l.index.find(revID(kvblock.EngineHash(than)))
	if at == nil {
		return
	}
	next := uint32(*at)
	l.link(l.enter(key), next)
}

// enter makes a node for a key that is not there.
func (l *lru) enter(key blockhash.Hash) uint32 {
	if l.nodes == nil {
		l.nodes = make([]node, 1, 8)
	}
	n := l.spare
	if n != 0 {
		l.spare = l.nodes[n].next
	} else {
		n = uint32(len(l.nodes))
		l.nodes = append(l.nodes, node{})
	}
	l.nodes[n].key = key
	l.index.room(1)
	l.index.add(revID(kvblock.EngineHash(key)), blockhash.Hash(n))
	return n
}

// evict takes the oldest key out and returns it. There must be one.
func (l *lru) evict() blockhash.Hash {
	key := l.oldest()
	l.remove(key)
	return key
}

// remove takes a key out, if it is there.
func (l *lru) remove(key blockhash.Hash) {
	at, _, known := l.index.drop(revID(kvblock.EngineHash(key)))
	if !known {
		return
	}
	n := uint32(at)
	l.unlink(n)
	l.nodes[n].next = l.spare
	l.spare = n
}

func (l *lru) unlink(n uint32) {
	prev, next := l.nodes[n].prev, l.nodes[n].next
	l.nodes[prev].next, l.nodes[next].prev = next, prev
}

// link puts n before next; before the ring's head it is the newest.
func (l *lru) link(n, next uint32) {
	prev := l.nodes[next].prev
	l.nodes[n].prev, l.nodes[n].next = prev, next
	l.nodes[prev].next, l.nodes[next].prev = n, n
}

func (l *lru) bytes() int64 { return l.index.bytes() + 16*int64(cap(l.nodes)) }
