package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// heads finds extents by their first hash. Readers take no lock; there is one writer at a time. Each
// of its shards is an open-addressing table, so that one that grows is small.
type heads struct {
	tabs   [shards]atomic.Pointer[[]head]
	counts [shards]headCount
	bytes  atomic.Int64
}

type headCount struct{ live, used int }

// head is a place in a table: free with key 0, once used without an extent. An entry that a reader finds under a key counts only
// when its first hash is the one asked for: a place may change between the two reads.
type head struct {
	key atomic.Uint64
	at  atomic.Pointer[extent]
}

const (
	headBytes = 16
	minHeads  = 8
)

// headKey is never 0.
func headKey(h blockhash.Hash) uint64 { return spread(h) | 1 }

// headHome is where the search for a key begins in a table of n places.
func headHome(key uint64, n int) int {
	at, _ := bits.Mul64(key<<shardBits, uint64(n))
	return int(at)
}

// get returns the extent that begins with h, or nil.
func (t *heads) get(h blockhash.Hash) *extent {
	key := headKey(h)
	tab := t.tabs[key>>(64-shardBits)].Load()
	if tab == nil {
		return nil
	}
	places := *tab
	for at := headHome(key, len(places)); ; {
		switch places[at].key.Load() {
		case 0:
			return nil
		case key:
			if e := places[at].at.Load(); e != nil && e.hashes[0] == h {
				return e
			}
		}
		if at++; at == len(places) {
			at = 0
		}
	}
}

// put enters e, in the place of the extent with the same first hash when there is one.
func (t *heads) put(e *extent) {
	key := headKey(e.hashes[0])
	n := key >> (64 - shardBits)
	c := &t.counts[n]
	if tab := t.tabs[n].Load(); tab == nil || 4*(c.used+1) > 3*len(*tab) {
		t.rebuild(n)
	}
	places := *t.tabs[n].Load()
	var free *head
	at := headHome(key, len(places))
	for ; places[at].key.Load() != 0; at = (at + 1) % len(places) {
		p := &places[at]
		old := p.at.Load()
		if old != nil && old.hashes[0] == e.hashes[0] {
			p.at.Store(e)
			return
		}
		if old == nil && free == nil {
			free = p
		}
	}
	if free == nil {
		free = &places[at]
		c.used++
	}
	c.live++
	free.key.Store(key)
	free.at.Store(e)
}

// remove takes e out.
func (t *heads) remove(e *extent) {
	key := headKey(e.hashes[0])
	n := key >> (64 - shardBits)
	places := *t.tabs[n].Load()
	for at := headHome(key, len(places)); places[at].key.Load() != 0; at = (at + 1) % len(places) {
		if places[at].at.Load() == e {
			places[at].at.Store(nil)
			t.counts[n].live--
			return
		}
	}
}

// rebuild gives a shard a table that is half full.
func (t *heads) rebuild(n uint64) {
	c := &t.counts[n]
	fresh := make([]head, max(minHeads, 2*(c.live+1)))
	old := t.tabs[n].Load()
	if old != nil {
		t.bytes.Add(int64(-headBytes * len(*old)))
		for i := range *old {
			e := (*old)[i].at.Load()
			if e == nil {
				continue
			}
			key := headKey(e.hashes[0])
			at := headHome(key, len(fresh))
			for fresh[at].key.Load() != 0 {
				at = (at + 1) % len(fresh)
			}
			fresh[at].key.Store(key)
			fresh[at].at.Store(e)
		}
	}
	t.bytes.Add(int64(headBytes * len(fresh)))
	c.used = c.live
	t.tabs[n].Store(&fresh)
}
