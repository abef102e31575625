package indexbench

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// cache is one rank's block cache: least recently used first out, the end of a prompt before
// its beginning.
type cache struct {
	capacity int
	salt     uint64
	at       map[blockhash.Hash]uint32
	nodes    []cacheNode // nodes[0] is the ring's head
	spare    []uint32
}

type cacheNode struct {
	key        blockhash.Hash
	prev, next uint32
}

func newCache(capacity int, salt uint64) *cache {
	return &cache{
		capacity: capacity, salt: salt,
		at:    make(map[blockhash.Hash]uint32, capacity),
		nodes: make([]cacheNode, 1, capacity+1),
	}
}

// name is the rank's own name for a block: ranks do not agree on names.
func (c *cache) name(key blockhash.Hash) kvblock.EngineHash {
	return kvblock.EngineHash((uint64(key) ^ c.salt) * 0x9FB21C651E98DF25)
}

// use makes the prompt's blocks the newest. It returns how many leading ones were held, and
// appends the blocks that had to go to evicted.
func (c *cache) use(prompt []blockhash.Hash, evicted []kvblock.EngineHash) (int, []kvblock.EngineHash) {
	prompt = prompt[:min(len(prompt), c.capacity)]
	held := 0
	for held < len(prompt) {
		n, ok := c.at[prompt[held]]
		if !ok {
			break
		}
		c.unlink(n) // in use: cannot go
		held++
	}
	for _, key := range prompt[held:] {
		if n, ok := c.at[key]; ok { // held without its predecessors: computed again
			c.unlink(n)
			evicted = append(evicted, c.name(key))
			c.drop(n)
		}
	}
	for len(c.at)+len(prompt)-held > c.capacity {
		n := c.nodes[0].next
		evicted = append(evicted, c.name(c.nodes[n].key))
		c.unlink(n)
		c.drop(n)
	}
	for _, key := range prompt[held:] {
		var n uint32
		if last := len(c.spare) - 1; last >= 0 {
			n, c.spare = c.spare[last], c.spare[:last]
		} else {
			n = uint32(len(c.nodes))
			c.nodes = append(c.nodes, cacheNode{})
		}
		c.nodes[n].key = key
		c.at[key] = n
	}
	for i := len(prompt) - 1; i >= 0; i-- {
		c.push(c.at[prompt[i]])
	}
	return held, evicted
}

func (c *cache) drop(n uint32) {
	delete(c.at, c.nodes[n].key)
	c.spare = append(c.spare, n)
}

func (c *cache) unlink(n uint32) {
	prev, next := c.nodes[n].prev, c.nodes[n].next
	c.nodes[prev].next, c.nodes[next].prev = next, prev
}

func (c *cache) push(n uint32) {
	last := c.nodes[0].prev
	c.nodes[n].prev, c.nodes[n].next = last, 0
	c.nodes[last].next, c.nodes[0].prev = n, n
}
