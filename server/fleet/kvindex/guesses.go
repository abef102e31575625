package kvindex

import (
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// guesses holds the assumed contents of ranks without events: the prompts that were routed to
// them, per rank the least recently used blocks out.
//
// A block's hash names all blocks before it, so prompts form a forest, and its paths are cut into
// extents: blocks that follow each other and have the same holders. An extent is found by its first
// hash, which also continues the extent that ends before it. A prompt costs its extents, not its blocks: one for its new part,
// one more where it leaves another prompt in the middle of an extent.
//
// Lookups take no lock. Extents do not change but for their holders; a split publishes the lower part before
// the upper one takes the whole's place, so that a lookup finds either.
type guesses struct {
	sets  *setTable
	heads heads
	held  atomic.Int64 // (rank, block) pairs
	bytes atomic.Int64 // memory of the extents

	mu    sync.Mutex
	ranks []guessed // by slot; guarded by mu
}

// guessed is one rank's part of the guesses. A rank that holds an extent holds the extents before it on its path, and
// used them no earlier.
type guessed struct {
	order  lru // first hashes of its extents
	blocks int
}

// extent is a part of one or several prompts.
type extent struct {
	hashes  []blockhash.Hash // never changed
	holders atomic.Uint32    // a set; changed under guesses.mu
}

// extentCost is an extent's own memory in bytes.
const extentCost = 32

func newGuesses(sets *setTable, maxRanks int) *guesses {
	return &guesses{sets: sets, ranks: make([]guessed, maxRanks)}
}

// routed makes the hashes the newest of the writer's rank and forgets its oldest blocks above
// capacity. It returns by how many the held blocks grew.
func (g *guesses) routed(w *writer, hashes []blockhash.Hash, capacity int) int {
	hashes = hashes[:min(len(hashes), capacity)]
	g.mu.Lock()
	defer g.mu.Unlock()
	own, before := &g.ranks[w.slot], g.held.Load()
	var room [32]blockhash.Hash
	path := room[:0] // the first hashes of the prompt's extents
	for rest := hashes; len(rest) > 0; {
		e := g.heads.get(rest[0])
		if e == nil {
			e = g.enter(slices.Clone(rest), single(w.slot))
			g.count(own, e)
		} else {
			if n := common(e.hashes, rest); n < len(e.hashes) {
				e = g.split(e, n)
			}
			if !g.hold(own, e, w) {
				break
			}
		}
		path = append(path, rest[0])
		rest = rest[len(e.hashes):]
	}
	// As in an engine, the end of a prompt is forgotten before its beginning.
	for _, head := range slices.Backward(path) {
		own.order.refresh(head)
	}
	for own.blocks > capacity {
		g.evict(own, w, own.blocks-capacity)
	}
	return int(g.held.Load() - before)
}

// drop forgets all that the writer's rank holds and returns how many blocks that were.
func (g *guesses) drop(w *writer) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, before := &g.ranks[w.slot], g.held.Load()
	for own.order.len() > 0 {
		g.release(own, w)
	}
	own.order = lru{}
	return int(before - g.held.Load())
}

// of returns how many blocks a rank is taken to hold, and the memory of their order.
func (g *guesses) of(slot replica.Slot) (blocks int, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := &g.ranks[slot]
	return own.blocks, own.order.bytes()
}

// The methods below need g.mu.

// enter publishes a new extent. The caller gives it a reference on its holders.
func (g *guesses) enter(hashes []blockhash.Hash, holders uint32) *extent {
	e := &extent{hashes: hashes}
	e.holders.Store(holders)
	g.bytes.Add(extentCost + 8*int64(cap(hashes)))
	g.heads.put(e)
	return e
}

// count notes that a rank became a holder of e.
func (g *guesses) count(own *guessed, e *extent) {
	own.order.refresh(e.hashes[0])
	own.blocks += len(e.hashes)
	g.held.Add(int64(len(e.hashes)))
}

// hold makes the writer's rank a holder of e. It reports false when no set id is free.
func (g *guesses) hold(own *guessed, e *extent, w *writer) bool {
	from := e.holders.Load()
	to := w.with(g.sets, from)
	if to != from && to != 0 {
		e.holders.Store(to)
		g.count(own, e)
	}
	return to != 0
}

// evict forgets the oldest n blocks of the writer's rank, or its oldest extent when that is shorter.
func (g *guesses) evict(own *guessed, w *writer, n int) {
	e := g.heads.get(own.order.oldest())
	if keep := len(e.hashes) - n; keep > 0 {
		if e.holders.Load() == single(w.slot) {
			g.replace(e, keep)
			own.blocks -= n
			g.held.Add(int64(-n))
			return
		}
		g.split(e, keep) // the lower part is now the oldest
	}
	g.release(own, w)
}

// release ends the hold of the rank's oldest extent.
func (g *guesses) release(own *guessed, w *writer) {
	e := g.heads.get(own.order.evict())
	own.blocks -= len(e.hashes)
	g.held.Add(int64(-len(e.hashes)))
	to, ok := w.without(g.sets, e.holders.Load(), func(slot replica.Slot) {
		other := &g.ranks[slot]
		other.order.remove(e.hashes[0])
		other.blocks -= len(e.hashes)
		g.held.Add(int64(-len(e.hashes)))
	})
	if !ok {
		return
	}
	e.holders.Store(to)
	if to == 0 {
		g.bytes.Add(-extentCost - 8*int64(cap(e.hashes)))
		g.heads.remove(e)
	}
}

// split cuts e after its first n blocks and returns the upper part.
func (g *guesses) split(e *extent, n int) *extent {
	lower, holders := e.hashes[n:], e.holders.Load()
	known := g.heads.get(lower[0]) != nil // only where hashes are no chain: then the lower part is forgotten
	if !known {
		if holders >= singles {
			g.sets.ref(holders).Add(1)
		}
		g.enter(slices.Clone(lower), holders)
	}
	g.eachHolder(holders, func(own *guessed) {
		switch {
		case known:
			own.blocks -= len(lower)
			g.held.Add(int64(-len(lower)))
		default:
			own.order.insertOlder(lower[0], e.hashes[0])
		}
	})
	return g.replace(e, n)
}

// replace publishes the first n blocks of e in its place.
func (g *guesses) replace(e *extent, n int) *extent {
	hashes := e.hashes[:n]
	if 2*n < cap(hashes) { // else the rest stays in memory with them
		hashes = slices.Clone(hashes)
	}
	g.bytes.Add(-extentCost - 8*int64(cap(e.hashes)))
	return g.enter(hashes, e.holders.Load())
}

// eachHolder calls f for each rank in the set.
func (g *guesses) eachHolder(set uint32, f func(*guessed)) {
	if set < singles {
		f(&g.ranks[set-1])
		return
	}
	for i, word := range g.sets.members(set) {
		for ; word != 0; word &= word - 1 {
			f(&g.ranks[i*64+bits.TrailingZeros64(word)])
		}
	}
}

// common returns how many leading blocks two paths share that have the first one in common: hashes
// that agree somewhere agree everywhere before.
func common(a, b []blockhash.Hash) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	return 1 + sort.Search(n-2, func(i int) bool { return a[i+1] != b[i+1] })
}

// guess appends the leads of the ranks that are taken to hold the first block. Ranks that dst has from
// base on are left out.
func (s *search) guess(g *guesses, base int) {
	at := 0
	for at < len(s.hashes) {
		e := g.heads.get(s.hashes[at])
		if e == nil {
			break
		}
		if set := e.holders.Load(); at == 0 {
			s.load(set)
			s.leaveOut(s.dst[base:])
		} else {
			s.emit(set, at)
		}
		if s.left == 0 {
			return
		}
		n := common(e.hashes, s.hashes[at:])
		if at += n; n < len(e.hashes) {
			break
		}
	}
	if at > 0 {
		s.emit(0, at)
	}
}

// leaveOut ends the search for ranks that have an answer.
func (s *search) leaveOut(known []Overlap) {
	for _, o := range known {
		if at := &s.active[o.Slot/64]; *at>>(o.Slot%64)&1 != 0 {
			*at &^= 1 << (o.Slot % 64)
			s.left--
		}
	}
}

// lead returns how many leading blocks one rank is taken to hold.
func (g *guesses) lead(slot replica.Slot, hashes []blockhash.Hash) int {
	at := 0
	for at < len(hashes) {
		e := g.heads.get(hashes[at])
		if e == nil || !g.sets.has(e.holders.Load(), slot) {
			break
		}
		n := common(e.hashes, hashes[at:])
		if at += n; n < len(e.hashes) {
			break
		}
	}
	return at
}
