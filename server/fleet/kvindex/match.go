package kvindex

import (
	"math/bits"

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

// tries bounds how often a lookup starts over because set ids were reused under it.
const tries = 8

// Match appends to dst an entry for each rank that holds the first of hashes in any tier, in
// no particular order, and returns it. It does not allocate when dst has room.
//
// Engines evict the end of a chain before its beginning, so a rank that holds a block is taken
// to hold those before it; where that is not so, the first block and the last one counted are
// held, and the one after is not. Only ranks with the block size of the hashes can match.
func (ix *Index) Match(dst []Overlap, hashes []blockhash.Hash) []Overlap {
	if len(hashes) == 0 {
		return dst
	}
	base := len(dst)
	for range tries {
		epoch := ix.sets.epoch.Load()
		dst = ix.match(dst[:base], hashes)
		if ix.sets.epoch.Load() == epoch {
			return dst
		}
		ix.retries.Add(1)
	}
	// Set ids are not reused while their lock is held.
	ix.sets.mu.Lock()
	defer ix.sets.mu.Unlock()
	return ix.match(dst[:base], hashes)
}

func (ix *Index) match(dst []Overlap, hashes []blockhash.Hash) []Overlap {
	base := len(dst)
	gpu := ix.tiers[kvblock.TierGPU]
	if facts, guesses := gpu.held.Load() > 0, ix.guesses.held.Load() > 0; facts || guesses {
		s := ix.searches.Get().(*search)
		s.plane, s.hashes, s.dst = gpu, hashes, dst
		if facts {
			s.run()
		}
		if guesses {
			s.guess(ix.guesses, base)
		}
		dst = s.dst
		s.hashes, s.dst = nil, nil
		ix.searches.Put(s)
	}
	if ix.limited.Load() > 0 {
		dst = ix.applyLimits(dst, base, hashes)
	}
	if ix.beliefs.held.Load() > 0 {
		dst = ix.extend(dst, base, hashes, ix.beliefs, kvblock.TierGPU)
	}
	for t := kvblock.TierCPU; t <= kvblock.TierDisk; t++ {
		if p := ix.tiers[t]; p.held.Load() > 0 {
			dst = ix.extend(dst, base, hashes, p, t)
		}
	}
	return dst
}

// applyLimits cuts the leads from base on by the ranks' limiting groups.
func (ix *Index) applyLimits(dst []Overlap, base int, hashes []blockhash.Hash) []Overlap {
	kept := dst[:base]
	for _, o := range dst[base:] {
		if o.GPU = uint32(ix.limitedLead(o.Slot, hashes, int(o.GPU))); o.GPU > 0 {
			kept = append(kept, o)
		}
	}
	return kept
}

// extend adds to each overlap from base on what the plane continues it by, and appends the ranks
// that hold the beginning there only. In the GPU tier it counts beliefs.
func (ix *Index) extend(dst []Overlap, base int, hashes []blockhash.Hash, p *plane, tier kvblock.Tier) []Overlap {
	var room, more [MaxRanks / 64]uint64
	seen, fresh := room[:ix.sets.words], more[:ix.sets.words]
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
		if ix.stride(o.Slot, tier) == 1 {
			if from := int(o.reach()); from != next {
				next, continues = from, 0
				if from < len(hashes) {
					continues = p.get(spread(hashes[from]))
				}
			}
			if !ix.sets.has(continues, o.Slot) {
				continue
			}
		}
		o.add(tier, ix.run(p, tier, o.Slot, hashes, int(o.reach())))
	}
	// In a rank with a lower tier of k-block chunks, the first chunk ends there.
	for strides := ix.strides[tier].Load() | 1<<1; strides != 0; strides &= strides - 1 {
		k := bits.TrailingZeros64(strides)
		if k > len(hashes) {
			break
		}
		ix.sets.load(p.get(spread(hashes[k-1])), fresh)
		for i, w := range fresh {
			for w &^= seen[i]; w != 0; w &= w - 1 {
				slot := replica.Slot(i*64 + bits.TrailingZeros64(w))
				if n := ix.run(p, tier, slot, hashes, 0); n > 0 {
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
func (ix *Index) run(p *plane, tier kvblock.Tier, slot replica.Slot, hashes []blockhash.Hash, from int) int {
	k := ix.stride(slot, tier)
	first, end := from/k, len(hashes)/k // in chunks
	holds := func(chunk int) bool { return ix.sets.has(p.get(spread(hashes[(chunk+1)*k-1])), slot) }
	if first >= end || !holds(first) {
		return 0
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
	return (lo+1)*k - from
}

// stride is how many blocks a chunk of the rank's tier has; the GPU's have one.
func (ix *Index) stride(slot replica.Slot, tier kvblock.Tier) int {
	if tier == kvblock.TierGPU || ix.strides[tier].Load() == 0 {
		return 1
	}
	if r := ix.rank(slot); r != nil {
		return max(int(r.strides[tier].Load()), 1)
	}
	return 1
}
