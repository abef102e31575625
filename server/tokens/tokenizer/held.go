package tokenizer

import "sync"

// held counts the memory of the encodings that requests in flight hold. The cache bounds what it keeps, not what was taken from it:
// a thousand requests that wait with long prompts of their own would hold a thousand lists of ids.
type held struct {
	limit int64

	mu    sync.Mutex
	bytes int64            // guarded by mu
	by    map[*entry]*hold // guarded by mu
}

// hold is one entry that requests hold, and how many.
type hold struct {
	bytes    int64
	requests int
}

// take counts one more request that holds e, and reports whether there is room for e.
func (h *held) take(e *entry) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.by[e]; known != nil {
		known.requests++
		return true
	}
	n := int64(e.bytes())
	if h.bytes+n > h.limit {
		return false
	}
	if h.by == nil {
		h.by = map[*entry]*hold{}
	}
	h.bytes += n
	h.by[e] = &hold{n, 1}
	return true
}

// release counts one request less.
func (h *held) release(e *entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.by[e]
	if known.requests--; known.requests == 0 {
		h.bytes -= known.bytes
		delete(h.by, e)
	}
}

// now is the memory that is held.
func (h *held) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}
