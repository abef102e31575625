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

// fan is the number of parts that the search splits a range of positions into: the probes of
// one round wait for memory together, so that a round costs little more than one probe.
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
		s := search{plane: gpu, hashes: hashes, words: ix.sets.words, dst: dst}
		s.run()
		dst = s.dst
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

// search finds where each rank's hold of a prompt ends.
type search struct {
	plane  *plane
	hashes []blockhash.Hash
	dst    []Overlap
	left   int // how many are active
	words  int // of active that are used
	// active are the ranks that hold everything up to the position reached.
	active [MaxRanks / 64]uint64
}

// run appends the leads of all ranks that hold the first block.
func (s *search) run() {
	last := len(s.hashes) - 1
	s.touch(0, last)
	s.plane.touch(spread(s.hashes[last]))
	first := s.plane.get(spread(s.hashes[0]))
	if first == 0 {
		return
	}
	sets := s.plane.sets
	sets.load(first, s.active[:s.words])
	for _, w := range s.active[:s.words] {
		s.left += bits.OnesCount64(w)
	}
	if last > 0 {
		s.narrow(0, last, first, s.plane.get(spread(s.hashes[last])), true)
	}
	s.emit(0, len(s.hashes))
}

// touch starts the memory accesses of the next round between lo and hi.
func (s *search) touch(lo, hi int) {
	for i := 1; i < fan; i++ {
		s.plane.touch(spread(s.hashes[lo+(hi-lo)*i/fan]))
	}
}

// narrow finds the ends in (lo, hi], where low and high are the sets at both positions. The
// ranks in active hold lo.
func (s *search) narrow(lo, hi int, low, high uint32, touched bool) {
	if low == high || s.left == 0 || !s.ends(high) {
		return
	}
	if hi-lo == 1 {
		s.emit(high, hi)
		return
	}
	if !touched {
		s.touch(lo, hi)
	}
	at := lo
	for i := 1; i < fan && s.left > 0; i++ {
		next := lo + (hi-lo)*i/fan
		if next == at {
			continue
		}
		id := s.plane.get(spread(s.hashes[next]))
		s.narrow(at, next, low, id, false)
		at, low = next, id
	}
	s.narrow(at, hi, low, high, false)
}

// ends reports whether any active rank is not in the set.
func (s *search) ends(set uint32) bool {
	if set < singles {
		if set == 0 {
			return true
		}
		slot := set - 1
		return s.left > 1 || s.active[slot/64]>>(slot%64)&1 == 0
	}
	words := s.plane.sets.members(set)
	for i, w := range s.active[:s.words] {
		if w != 0 && w&^atomic.LoadUint64(&words[i]) != 0 {
			return true
		}
	}
	return false
}

// emit ends, at the given number of blocks, all active ranks that are not in the set.
func (s *search) emit(set uint32, blocks int) {
	var words []uint64
	if set >= singles {
		words = s.plane.sets.members(set)
	}
	for i, w := range s.active[:s.words] {
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
