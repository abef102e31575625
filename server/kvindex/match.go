package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/kvblock"
	"github.com/kvpilot/kvpilot/server/replica"
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

// fan is the number of parts that the search splits a range of positions into.
const fan = 4

// tries bounds how often a lookup starts over because set ids were reused under it.
const tries = 8

// Match appends to dst an entry for each rank that holds the first of hashes in any tier, in
// no particular order, and returns it. It does not allocate when dst has room.
//
// Engines evict the end of a chain before its beginning, so a rank that holds a block is taken
// to hold those before it; where that is not so, the first block and the last one counted are
// held, and the one after is not. Only ranks whose block size the hashes have can match.
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
	if gpu := ix.tiers[kvblock.TierGPU]; gpu.held.Load() > 0 {
		s := ix.searches.Get().(*search)
		s.plane, s.hashes, s.dst = gpu, hashes, dst
		s.run()
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

// search finds where each rank's hold of a prompt ends. It looks at a few positions at first, and
// then, level by level, into the ranges in which some rank drops out: all probes of a level wait for
// memory together, so that ten ends cost little more than one.
type search struct {
	plane  *plane
	hashes []blockhash.Hash
	dst    []Overlap
	left   int      // how many ranks are active
	active []uint64 // ranks that hold everything up to the position reached
	ranges []span   // where ranks drop out, in order
	finer  []span   // the next level
}

// span is a range of positions with the sets at both of its ends.
type span struct {
	lo, hi    int
	low, high uint32
}

// run appends the leads of all ranks that hold the first block.
func (s *search) run() {
	all := span{lo: 0, hi: len(s.hashes) - 1}
	s.touch(all)
	s.plane.touch(spread(s.hashes[all.hi]))
	all.low = s.plane.get(spread(s.hashes[0]))
	if all.low == 0 {
		return
	}
	s.load(all.low)
	s.ranges = s.ranges[:0]
	if all.hi > 0 {
		all.high = s.plane.get(spread(s.hashes[all.hi]))
		s.ranges = s.keep(s.ranges, all)
	}
	for level := 0; s.refine(level > 0); level++ {
	}
	for _, r := range s.ranges {
		if s.left == 0 {
			return
		}
		s.emit(r.high, r.hi)
	}
	if s.left > 0 {
		s.emit(0, len(s.hashes))
	}
}

// load makes the ranks of the set active.
func (s *search) load(set uint32) {
	s.plane.sets.load(set, s.active)
	s.left = 0
	for _, w := range s.active {
		s.left += bits.OnesCount64(w)
	}
}

// touch starts the memory accesses of a split of r.
func (s *search) touch(r span) {
	n := r.hi - r.lo
	for i := 1; i < fan; i++ {
		s.plane.touch(spread(s.hashes[r.lo+n*i/fan]))
	}
}

// refine splits all ranges that are longer than a step and keeps the parts in which a rank
// drops out. It reports whether there were any.
func (s *search) refine(touch bool) bool {
	wide := false
	for _, r := range s.ranges {
		if r.hi-r.lo > 1 {
			wide = true
			if touch {
				s.touch(r)
			}
		}
	}
	if !wide {
		return false
	}
	s.finer = s.finer[:0]
	for _, r := range s.ranges {
		if r.hi-r.lo == 1 {
			s.finer = append(s.finer, r)
			continue
		}
		at, low := r.lo, r.low
		for i := 1; i < fan; i++ {
			next := r.lo + (r.hi-r.lo)*i/fan
			if next == at {
				continue
			}
			id := s.plane.get(spread(s.hashes[next]))
			s.finer = s.keep(s.finer, span{at, next, low, id})
			at, low = next, id
		}
		s.finer = s.keep(s.finer, span{at, r.hi, low, r.high})
	}
	s.ranges, s.finer = s.finer, s.ranges
	return true
}

// keep appends r to list when a rank of its low set is not in its high set.
func (s *search) keep(list []span, r span) []span {
	if s.plane.sets.within(r.low, r.high) {
		return list
	}
	return append(list, r)
}

// emit ends, at the given number of blocks, all active ranks that are not in the set.
func (s *search) emit(set uint32, blocks int) {
	var words []uint64
	if set >= singles {
		words = s.plane.sets.members(set)
	}
	for i, w := range s.active {
		if w == 0 {
			continue
		}
		keep := uint64(0)
		switch {
		case words != nil:
			keep = atomic.LoadUint64(&words[i])
		case set != 0 && int(set-1)/64 == i:
			keep = 1 << ((set - 1) % 64)
		}
		for gone := w &^ keep; gone != 0; gone &= gone - 1 {
			slot := replica.Slot(i*64 + bits.TrailingZeros64(gone))
			s.dst = append(s.dst, Overlap{Slot: slot, GPU: uint32(blocks)})
			s.left--
		}
		s.active[i] = w & keep
	}
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
	for i := range dst[base:] {
		o := &dst[base+i]
		seen[o.Slot/64] |= 1 << (o.Slot % 64)
		o.add(tier, ix.run(p, tier, o.Slot, hashes, int(o.GPU+o.CPU)))
	}
	// Ranks whose lower tier holds chunks of k blocks have the end of the first chunk there.
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
