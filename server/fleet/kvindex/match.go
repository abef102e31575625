package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Overlap is how much of a prompt one rank holds, in leading blocks.
type Overlap struct {
	Slot replica.Slot
	// GPU counts the leading blocks in the rank's GPU cache. Believed is how many of them, at
	// the end, are not announced yet but were routed there a moment ago.
	GPU, Believed uint32
	// CPU and Disk count the blocks that continue the ones before from lower tiers.
	CPU, Disk uint32
}

// tables are read by lookups without a lock and filled by the ranks' writers.
type tables struct {
	sets *setTable
	// tiers are facts, one plane per tier; the GPU plane also has, under keys of their own, the
	// blocks of limiting groups. guesses and beliefs lie apart.
	tiers   [kvblock.Tiers]*plane
	guesses *guesses
	beliefs *plane
	// limited counts the ranks with matches that limiting groups cut.
	limited atomic.Int32
	// strides has bit k set when a rank's tier ever held chunks of k > 1 blocks.
	strides [kvblock.Tiers]atomic.Uint64
	stores  stores
}

// begin makes empty tables for so many ranks.
func (t *tables) begin(ranks int) {
	t.sets = newSetTable(ranks)
	for i := range t.tiers {
		t.tiers[i] = newPlane(t.sets)
	}
	t.beliefs, t.guesses = newPlane(t.sets), newGuesses(t.sets, ranks)
}

// lookup finds the ranks that hold the beginning of a prompt. It changes nothing but its counts.
type lookup struct {
	tables
	ranks *roster
	// searches are lent to lookups, so that these allocate nothing.
	searches sync.Pool
	retries  atomic.Int64 // lookups started over
}

func (l *lookup) begin(ranks *roster) {
	l.tables.begin(len(ranks.faces))
	l.ranks = ranks
	words := l.sets.words
	l.searches.New = func() any { return &search{active: make([]uint64, words)} }
}

// tries bounds how often a lookup starts over because set ids were reused under it.
const tries = 8

// Match appends to dst an entry for each rank that holds the first of hashes in any tier, in
// no particular order, and returns it. It does not allocate when dst has room.
//
// Engines evict the end of a chain before its beginning, so a rank that holds a block is taken
// to hold those before it; where that is not so, the first block and the last one counted are
// held, and the one after is not. Only ranks with the block size of the hashes can match.
func (l *lookup) Match(dst []Overlap, hashes []blockhash.Hash) []Overlap {
	if len(hashes) == 0 {
		return dst
	}
	base := len(dst)
	for range tries {
		epoch := l.sets.epoch.Load()
		dst = l.match(dst[:base], hashes)
		if l.sets.epoch.Load() == epoch {
			return dst
		}
		l.retries.Add(1)
	}
	// Set ids are not reused while their lock is held.
	l.sets.mu.Lock()
	defer l.sets.mu.Unlock()
	return l.match(dst[:base], hashes)
}

func (l *lookup) match(dst []Overlap, hashes []blockhash.Hash) []Overlap {
	base := len(dst)
	gpu := l.tiers[kvblock.TierGPU]
	if facts, guesses := gpu.held.Load() > 0, l.guesses.held.Load() > 0; facts || guesses {
		s := l.searches.Get().(*search)
		s.plane, s.hashes, s.dst = gpu, hashes, dst
		if facts {
			s.run()
		}
		if guesses {
			s.guess(l.guesses, base)
		}
		dst = s.dst
		s.hashes, s.dst = nil, nil
		l.searches.Put(s)
	}
	if l.limited.Load() > 0 {
		dst = l.applyLimits(dst, base, hashes)
	}
	if l.beliefs.held.Load() > 0 {
		dst = l.extend(dst, base, hashes, l.beliefs, kvblock.TierGPU)
	}
	for t := kvblock.TierCPU; t <= kvblock.TierDisk; t++ {
		if p := l.tiers[t]; p.held.Load() > 0 {
			dst = l.extend(dst, base, hashes, p, t)
		}
	}
	if shared := l.stores.list.Load(); shared != nil && l.tiers[kvblock.TierDisk].held.Load() > 0 {
		for i := range *shared {
			dst = l.share(dst, base, hashes, &(*shared)[i])
		}
	}
	return dst
}

// applyLimits cuts the leads from base on by the ranks' limiting groups.
func (l *lookup) applyLimits(dst []Overlap, base int, hashes []blockhash.Hash) []Overlap {
	kept := dst[:base]
	for _, o := range dst[base:] {
		if o.GPU = uint32(l.limitedLead(o.Slot, hashes, int(o.GPU))); o.GPU > 0 {
			kept = append(kept, o)
		}
	}
	return kept
}

// extend adds to each overlap from base on the blocks by which the plane continues it, and appends the ranks
// that hold the beginning there only. In the GPU tier it counts beliefs.
func (l *lookup) extend(dst []Overlap, base int, hashes []blockhash.Hash, p *plane, tier kvblock.Tier) []Overlap {
	var room, more [MaxRanks / 64]uint64
	seen, fresh := room[:l.sets.words], more[:l.sets.words]
	// Ranks that end at the same place follow each other: one probe finds which of them continue.
	next, continues := -1, uint32(0)
	for i := range dst[base:] {
		if from := int(dst[base+i].reach()); from != next && from < len(hashes) {
			next = from
			p.touch(spread(hashes[next]))
		}
	}
	next = -1
	for i := range dst[base:] {
		o := &dst[base+i]
		seen[o.Slot/64] |= 1 << (o.Slot % 64)
		if l.stride(o.Slot, tier) == 1 {
			if from := int(o.reach()); from != next {
				next, continues = from, 0
				if from < len(hashes) {
					continues = p.get(spread(hashes[from]))
				}
			}
			if !l.sets.has(continues, o.Slot) {
				continue
			}
		}
		o.add(tier, l.run(p, tier, o.Slot, hashes, int(o.reach())))
	}
	// In a rank with a lower tier of k-block chunks, the first chunk ends there.
	for strides := l.strides[tier].Load() | 1<<1; strides != 0; strides &= strides - 1 {
		k := bits.TrailingZeros64(strides)
		if k > len(hashes) {
			break
		}
		l.sets.load(p.get(spread(hashes[k-1])), fresh)
		for i, w := range fresh {
			for w &^= seen[i]; w != 0; w &= w - 1 {
				slot := replica.Slot(i*64 + bits.TrailingZeros64(w))
				if n := l.run(p, tier, slot, hashes, 0); n > 0 {
					seen[i] |= w & -w
					dst = append(dst, Overlap{Slot: slot})
					dst[len(dst)-1].add(tier, n)
				}
			}
		}
	}
	return dst
}

// reach is where the next tier's blocks would have to begin.
func (o *Overlap) reach() uint32 { return o.GPU + o.CPU }

// add counts blocks of a tier; in the GPU tier they are believed ones.
func (o *Overlap) add(tier kvblock.Tier, n int) {
	switch tier {
	case kvblock.TierGPU:
		o.GPU += uint32(n)
		o.Believed = uint32(n)
	case kvblock.TierCPU:
		o.CPU = uint32(n)
	case kvblock.TierDisk:
		o.Disk = uint32(n)
	}
}

// run returns how many of the hashes from position from on the rank holds in p without a gap.
// Where the tier holds chunks of several blocks, the last block of each stands for it.
func (l *lookup) run(p *plane, tier kvblock.Tier, slot replica.Slot, hashes []blockhash.Hash, from int) int {
	k := l.stride(slot, tier)
	first, end := from/k, len(hashes)/k // in chunks
	held := lead(first, end, func(chunk int) bool { return l.sets.has(p.get(spread(hashes[(chunk+1)*k-1])), slot) })
	if held == first {
		return 0
	}
	return held*k - from
}

// lead returns the end of the chunks from first on, before end, that are held without a gap.
func lead(first, end int, holds func(chunk int) bool) int {
	if first >= end || !holds(first) {
		return first
	}
	lo, step := first, 1
	for lo+step < end && holds(lo+step) {
		lo += step
		step *= 2
	}
	hi := min(lo+step, end) // lo is held, hi is not or is the end
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; holds(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + 1
}

// stride is how many blocks a chunk of the rank's tier has; the GPU's have one.
func (l *lookup) stride(slot replica.Slot, tier kvblock.Tier) int {
	if tier == kvblock.TierGPU || l.strides[tier].Load() == 0 {
		return 1
	}
	if r := l.ranks.rank(slot); r != nil {
		return max(int(r.strides[tier].Load()), 1)
	}
	return 1
}
