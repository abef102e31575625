package indexbench

import (
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// stepBlocks is how many blocks one engine step stores at most: 2,048 tokens.
const stepBlocks = 2048 / blockTokens

// op is one event: blocks [from, to) of a request stored, or a removal of names [from, to) of the
// stream. Decoded events would lie in a decoder's buffers; the driver makes them at play time
// from this compact form, which costs it about 5 ns per block.
type op struct {
	at       int64 // milliseconds of trace time
	rank     uint32
	request  int32 // -1: a removal
	from, to uint32
}

// stream is a recorded run of events, in order per rank.
type stream struct {
	ops     []op
	names   []kvblock.EngineHash // of removals and of stored blocks
	parents []uint32             // stored ops: index into names of their first block
	blocks  int
}

// fleet simulates the ranks' caches and records their events.
type fleet struct {
	*player
	caches []*cache
	dice   *rand.Rand
	prompt []blockhash.Hash
	gone   []kvblock.EngineHash
	// perEvent is the number of hashes per removed event; vLLM sends one.
	perEvent int
}

func newFleet(p *player, ranks, blocks, perEvent int, seed uint64) *fleet {
	f := &fleet{player: p, dice: rand.New(rand.NewPCG(seed, 2)), perEvent: perEvent}
	for range ranks {
		f.caches = append(f.caches, newCache(blocks/ranks, f.dice.Uint64()))
	}
	return f
}

// held counts the blocks in all caches.
func (f *fleet) held() int {
	n := 0
	for _, c := range f.caches {
		n += len(c.at)
	}
	return n
}

// record routes request n to a rank chosen by chance and appends its events to s.
func (f *fleet) record(s *stream, n int) {
	f.prompt = f.hashes(f.prompt[:0], n)
	rank := f.dice.IntN(len(f.caches))
	c := f.caches[rank]
	var held int
	held, f.gone = c.use(f.prompt, f.gone[:0])
	total := min(len(f.prompt), c.capacity)
	at := f.requests[n%len(f.requests)].Timestamp
	s.blocks += len(f.gone) + total - held
	// A step's evictions come before its stored blocks.
	for gone := f.gone; ; {
		step := min(total-held, stepBlocks)
		drop := min(step, len(gone))
		if step == 0 {
			drop = len(gone)
		}
		for drop > 0 {
			k := min(drop, f.perEvent)
			first := uint32(len(s.names))
			s.names = append(s.names, gone[:k]...)
			s.add(op{at: at, rank: uint32(rank), request: -1, from: first, to: first + uint32(k)}, 0)
			gone, drop = gone[k:], drop-k
		}
		if step == 0 {
			return
		}
		first := uint32(len(s.names))
		for _, key := range f.prompt[max(held-1, 0) : held+step] {
			s.names = append(s.names, c.name(key))
		}
		s.add(op{at: at, rank: uint32(rank), request: int32(n), from: uint32(held), to: uint32(held + step)}, first)
		held += step
	}
}

func (s *stream) add(o op, first uint32) {
	s.ops = append(s.ops, o)
	s.parents = append(s.parents, first)
}

// applier plays recorded events into an index.
type applier struct {
	ix     *kvindex.Index
	p      *player
	tokens []uint32
	stored kvblock.Stored
	gone   kvblock.Removed
}

// apply plays the i-th event and returns its number of blocks.
func (a *applier) apply(s *stream, i int) int {
	o := &s.ops[i]
	if o.request < 0 {
		a.gone.Hashes = s.names[o.from:o.to]
		a.ix.Remove(replica.Slot(o.rank), &a.gone)
		return int(o.to - o.from)
	}
	n := int(o.to - o.from)
	first := s.parents[i]
	a.stored.HasParent = o.from > 0
	if o.from > 0 {
		a.stored.Parent = s.names[first]
		first++
	}
	a.tokens = a.p.prompt(a.tokens, int(o.request), int(o.from), int(o.to))
	a.stored.Hashes = s.names[first : int(first)+n]
	a.stored.Tokens = a.tokens
	a.stored.BlockSize = blockTokens
	a.ix.Store(replica.Slot(o.rank), &a.stored)
	return n
}

// applyAll plays the events of the ranks that mine accepts.
func (a *applier) applyAll(s *stream, mine func(rank uint32) bool) int {
	n := 0
	for i := range s.ops {
		if mine(s.ops[i].rank) {
			n += a.apply(s, i)
		}
	}
	return n
}
