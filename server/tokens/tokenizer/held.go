package tokenizer

import (
	"sync"
	"sync/atomic"
)

// held counts the memory of the encodings that requests in flight hold. The cache bounds the encodings that it keeps, not those taken
// from it: a thousand requests that wait with long prompts of their own would hold a thousand lists of ids.
type held struct {
	limit int64

	mu    sync.Mutex
	bytes int64         // guarded by mu
	by    map[any]*hold // guarded by mu; by pointers
}

// hold is one thing that requests hold, and how many.
type hold struct {
	bytes    int64
	requests int
}

// take counts one more request that holds a thing of so many bytes, and reports whether there is room for it below most.
func (h *held) take(thing any, bytes int, most int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.by[thing]; known != nil {
		known.requests++
		return true
	}
	n := int64(bytes)
	if h.bytes+n > most {
		return false
	}
	if h.by == nil {
		h.by = map[any]*hold{}
	}
	h.bytes += n
	h.by[thing] = &hold{n, 1}
	return true
}

// forIDs is the part of the limit that ids may fill: a request without room for its ids still has room for its blocks' names.
func (h *held) forIDs() int64 { return h.limit / 2 }

// release counts one request less.
func (h *held) release(thing any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.by[thing]
	if known.requests--; known.requests == 0 {
		h.bytes -= known.bytes
		delete(h.by, thing)
	}
}

// now is the memory that is held.
func (h *held) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}

// grip is the memory of one request in flight.
type grip struct {
	held *held
	// names and ids are counted while they are not nil; own is set when the request reserved room for ids that it keeps itself.
	names *names
	ids   *entry
	own   bool
}

// drop ends the count of the ids.
func (g *grip) drop() {
	if g.ids != nil {
		g.held.release(g.ids)
		g.ids = nil
	}
}

// blockSizes are the block sizes in use for a model, 0 for none yet. They are few, and safe for concurrent use.
type blockSizes struct{ list [maxHashLists]atomic.Int32 }

// note remembers a size, if there is a place for it.
func (b *blockSizes) note(size int) {
	for i := range b.list {
		known := b.list[i].Load()
		if known == 0 && b.list[i].CompareAndSwap(0, int32(size)) {
			return
		}
		if known = b.list[i].Load(); int(known) == size {
			return
		}
	}
}

// known are the sizes in the order in which they were noted.
func (b *blockSizes) known() (sizes []int) {
	for i := range b.list {
		if n := b.list[i].Load(); n > 0 {
			sizes = append(sizes, int(n))
		}
	}
	return sizes
}
