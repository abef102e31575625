package cache

import (
	"sync"
	"sync/atomic"
)

// Key names a value. Keys must be spread evenly: they are hashes.
type Key struct{ Hi, Lo uint64 }

const shards = 16

// nodeBytes is the cost of a value beyond its own bytes: key, links and the map's share.
const nodeBytes = 224

// Cache keeps values of type V.
type Cache[V any] struct {
	shards    [shards]shard[V]
	evictions atomic.Int64
	refused   atomic.Int64
}

type shard[V any] struct {
	mu    sync.RWMutex
	items map[Key]*node[V] // guarded by mu
	head  *node[V]         // guarded by mu; newest
	tail  *node[V]         // guarded by mu; oldest
	hand  *node[V]         // guarded by mu; where eviction continues
	bytes int64            // guarded by mu
	limit int64
}

type node[V any] struct {
	key        Key
	value      *V
	bytes      int64
	visited    atomic.Bool
	prev, next *node[V] // towards head, towards tail
}

// New makes a cache of at most maxBytes.
func New[V any](maxBytes int64) *Cache[V] {
	c := &Cache[V]{}
	for i := range c.shards {
		c.shards[i].items = map[Key]*node[V]{}
		c.shards[i].limit = maxBytes / shards
	}
	return c
}

func (c *Cache[V]) shard(k Key) *shard[V] { return &c.shards[k.Hi%shards] }

// Get returns the value, or nil.
func (c *Cache[V]) Get(k Key) *V {
	s := c.shard(k)
	s.mu.RLock()
	n := s.items[k]
	s.mu.RUnlock()
	if n == nil {
		return nil
	}
	if !n.visited.Load() {
		n.visited.Store(true)
	}
	return n.value
}

// Put keeps v, which costs bytes, under k and forgets the earlier value. It reports whether there
// was room.
func (c *Cache[V]) Put(k Key, v *V, bytes int) bool {
	s := c.shard(k)
	cost := int64(bytes) + nodeBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
	if cost > s.limit {
		c.refused.Add(1)
		return false
	}
	for s.bytes+cost > s.limit {
		s.evict()
		c.evictions.Add(1)
	}
	n := &node[V]{key: k, value: v, bytes: cost, next: s.head}
	if s.head != nil {
		s.head.prev = n
	} else {
		s.tail = n
	}
	s.head = n
	s.items[k] = n
	s.bytes += cost
	return true
}

// Delete forgets the value under k.
func (c *Cache[V]) Delete(k Key) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
}

// evict removes the oldest value that was not hit since the hand last passed it. The shard
// must not be empty.
func (s *shard[V]) evict() {
	n := s.hand
	if n == nil {
		n = s.tail
	}
	for n.visited.Swap(false) {
		if n = n.prev; n == nil {
			n = s.tail
		}
	}
	s.hand = n.prev
	s.unlink(n)
}

func (s *shard[V]) remove(k Key) {
	if n := s.items[k]; n != nil {
		if s.hand == n {
			s.hand = n.prev
		}
		s.unlink(n)
	}
}

func (s *shard[V]) unlink(n *node[V]) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		s.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		s.tail = n.prev
	}
	n.prev, n.next = nil, nil
	delete(s.items, n.key)
	s.bytes -= n.bytes
}

// Stats has the cache's contents and counts.
type Stats struct {
	Items     int   `json:"items"`
	Bytes     int64 `json:"bytes"`
	Evictions int64 `json:"evictions"`
	// Refused counts values that were larger than a shard.
	Refused int64 `json:"refused"`
}

// Stats returns the present figures.
func (c *Cache[V]) Stats() Stats {
	st := Stats{Evictions: c.evictions.Load(), Refused: c.refused.Load()}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		st.Items += len(s.items)
		st.Bytes += s.bytes
		s.mu.RUnlock()
	}
	return st
}
