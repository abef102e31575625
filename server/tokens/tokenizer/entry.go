package tokenizer

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// chain appends the hashes of the complete blocks of ids that follow the block parent, ids[0]
// being token number start of the prompt. A block that a media item overlaps is named by the
// item's content too.
func chain(dst []blockhash.Hash, parent blockhash.Hash, ids []uint32, start int, media []MediaItem, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	if len(media) == 0 {
		return blockhash.Extend(dst, parent, ids, blockSize, ns.Seed())
	}
	seed := ns.Seed()
	var items []string
	for at := start; len(ids) >= blockSize; at, ids = at+blockSize, ids[blockSize:] {
		items = items[:0]
		for _, m := range media {
			if m.Offset < at+blockSize && m.Offset+m.Length > at {
				items = append(items, m.Hash)
			}
		}
		local := blockhash.LocalWith(ids[:blockSize], seed, items)
		parent = blockhash.Next(parent, local)
		dst = append(dst, parent)
	}
	return dst
}

// entry is the cache's record of one prompt: its full ids, and the names of their blocks.
type entry struct {
	*names
	ids      []uint32
	batch    [][]uint32
	media    []MediaItem
	maxLen   int
	rendered bool
	epoch    uint64

	// root is set when the ids belong to a root and not to a whole prompt.
	root bool
	// prev is the key of the entry that this one extends; zero when there is none.
	prev cache.Key
	// children counts the entries that extend this one.
	children atomic.Int32
}

// newEntry makes an entry of ids that will not change, or that settle changes last.
func newEntry(ids []uint32) *entry { return &entry{names: &names{length: len(ids)}, ids: ids} }

// settle replaces the ids of an entry that is not shared yet.
func (e *entry) settle(ids []uint32) { e.ids, e.length = ids, len(ids) }

// hashesFor returns the hashes of the complete blocks among the first n ids.
func (e *entry) hashesFor(n, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.find(blockSize, ns)
	if h == nil {
		if len(e.hashes) == maxHashLists {
			e.hashes = append(e.hashes[:0], e.hashes[1:]...)
		}
		e.hashes = append(e.hashes, hashes{blockSize: blockSize, ns: ns})
		h = &e.hashes[len(e.hashes)-1]
	}
	return h.upTo(e, n)
}

// upTo extends the list so that it covers the first n ids and returns that part. Earlier
// results keep their elements: the list only grows.
func (h *hashes) upTo(e *entry, n int) []blockhash.Hash {
	want := n / h.blockSize
	if have := len(h.list); have < want {
		if cap(h.list) < want {
			grown := make([]blockhash.Hash, have, len(e.ids)/h.blockSize)
			copy(grown, h.list)
			h.list = grown
		}
		var parent blockhash.Hash
		if have > 0 {
			parent = h.list[have-1]
		}
		h.list = chain(h.list, parent, e.ids[have*h.blockSize:want*h.blockSize], have*h.blockSize, e.media, h.blockSize, h.ns)
	}
	return h.list[:want:want]
}

// inherit copies the hashes of the first n ids from an older entry that shares them.
func (e *entry) inherit(old *entry, n int) {
	old.mu.Lock()
	lists := make([]hashes, 0, len(old.hashes))
	for _, h := range old.hashes {
		keep := min(n/h.blockSize, len(h.list))
		list := make([]blockhash.Hash, keep, len(e.ids)/h.blockSize)
		copy(list, h.list[:keep])
		lists = append(lists, hashes{blockSize: h.blockSize, ns: h.ns, list: list})
	}
	old.mu.Unlock()
	e.mu.Lock()
	e.hashes = lists
	e.mu.Unlock()
}

// bytes is the entry's size in memory, its names among it.
func (e *entry) bytes() int {
	n := 4*len(e.ids) + e.names.bytes()
	for _, ids := range e.batch {
		n += 4*len(ids) + 24
	}
	for _, m := range e.media {
		n += len(m.Hash) + 64
	}
	return n
}
