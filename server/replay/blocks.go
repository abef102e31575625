package replay

import "github.com/kvpilot/kvpilot/server/blockhash"

// blockCache is one engine's KV cache: a fixed number of blocks, those that nobody uses kept in
// least-recently-used order and found again by their key.
type blockCache struct {
	entries []blockEntry
	byKey   map[blockhash.Hash]int32
	// free lists entries never used or without content; idle counts entries in the LRU list.
	free []int32
	idle int
	// removed collects the keys evicted since the last takeRemoved.
	removed []blockhash.Hash
}

type blockEntry struct {
	key        blockhash.Hash
	refs       int32
	prev, next int32
}

// The LRU list is circular round entry 0, which is no block.
func newBlockCache(blocks int) *blockCache {
	c := &blockCache{entries: make([]blockEntry, blocks+1), byKey: make(map[blockhash.Hash]int32, blocks), free: make([]int32, 0, blocks)}
	for i := blocks; i >= 1; i-- {
		c.free = append(c.free, int32(i))
	}
	return c
}

func (c *blockCache) available() int { return len(c.free) + c.idle }

// match counts the leading keys that are held.
func (c *blockCache) match(keys []blockhash.Hash) int {
	for i, k := range keys {
		if _, ok := c.byKey[k]; !ok {
			return i
		}
	}
	return len(keys)
}

// pin takes a use of each leading key that is held and appends their entries to held.
func (c *blockCache) pin(held []int32, keys []blockhash.Hash) []int32 {
	for _, k := range keys {
		i, ok := c.byKey[k]
		if !ok {
			break
		}
		if e := &c.entries[i]; e.refs == 0 {
			c.unlink(i)
		}
		c.entries[i].refs++
		held = append(held, i)
	}
	return held
}

// take appends n empty blocks in use to held, evicting the least recently used; the caller has
// checked available.
func (c *blockCache) take(held []int32, n int) []int32 {
	for range n {
		var i int32
		if l := len(c.free); l > 0 {
			i, c.free = c.free[l-1], c.free[:l-1]
		} else {
			i = c.entries[0].next
			c.unlink(i)
			if k := c.entries[i].key; k != 0 {
				delete(c.byKey, k)
				c.removed = append(c.removed, k)
				c.entries[i].key = 0
			}
		}
		c.entries[i].refs = 1
		held = append(held, i)
	}
	return held
}

// name gives entry i its content; false when another entry already holds it.
func (c *blockCache) name(i int32, key blockhash.Hash) bool {
	if _, ok := c.byKey[key]; ok || c.entries[i].key != 0 {
		return false
	}
	c.entries[i].key = key
	c.byKey[key] = i
	return true
}

// release gives the uses of held back, last block first, so that tails are evicted before heads.
func (c *blockCache) release(held []int32) {
	for j := len(held) - 1; j >= 0; j-- {
		i := held[j]
		e := &c.entries[i]
		if e.refs--; e.refs == 0 {
			c.append(i)
		}
	}
}

func (c *blockCache) append(i int32) {
	last := c.entries[0].prev
	c.entries[i].prev, c.entries[i].next = last, 0
	c.entries[last].next = i
	c.entries[0].prev = i
	c.idle++
}

func (c *blockCache) unlink(i int32) {
	e := &c.entries[i]
	c.entries[e.prev].next = e.next
	c.entries[e.next].prev = e.prev
	c.idle--
}

// takeRemoved returns the keys evicted since the last call; valid until the next eviction.
func (c *blockCache) takeRemoved() []blockhash.Hash {
	r := c.removed
	c.removed = c.removed[:0]
	return r
}
