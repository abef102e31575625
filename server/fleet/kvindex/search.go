package kvindex

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// search finds where each rank's hold of a prompt ends. It looks at a few positions at first, and
// then, round by round, into the ranges in which some rank drops out. All probes of a round wait for
// memory together: ten ends cost little more than one, and few rounds are worth more than few probes.
type search struct {
	plane  *plane
	hashes []blockhash.Hash
	dst    []Overlap
	left   int      // how many ranks are active
	active []uint64 // ranks that hold everything up to the position reached
	ranges []span   // where ranks drop out, in order
	finer  []span   // the next round's
	at     []int32  // the positions that a round looks at
	ids    []uint32 // the sets found there
}

// span is a range of positions with the sets at both of its ends.
type span struct {
	lo, hi    int32
	low, high uint32
}

// parts is the number of parts that a round splits a range of n steps into, one of so many ranges.
// One range alone waits for memory at any position; many ranges read many positions anyway.
func parts(n, ranges int) int {
	k := 8
	switch {
	case ranges > 4:
		k = 3
	case ranges > 1:
		k = 4
	}
	if n <= k+k/2 {
		return n
	}
	return k
}

// run appends the leads of all ranks that hold the first block.
func (s *search) run() {
	last := int32(len(s.hashes) - 1)
	s.at = append(s.at[:0], 0, last)
	all := span{lo: 0, hi: last}
	s.split(all, 1)
	s.look()
	if all.low, all.high = s.ids[0], s.ids[1]; all.low == 0 {
		return
	}
	s.load(all.low)
	s.ranges = s.ranges[:0]
	if !s.plane.sets.within(all.low, all.high) {
		s.ranges = append(s.ranges, all)
		for wide := s.refine(s.ids[2:]); wide; wide = s.refine(s.ids) {
			s.at = s.at[:0]
			for _, r := range s.ranges {
				s.split(r, len(s.ranges))
			}
			s.look()
		}
	}
	for _, r := range s.ranges {
		if s.left == 0 {
			return
		}
		s.emit(r.high, int(r.hi))
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

// split appends the positions between the parts of r.
func (s *search) split(r span, ranges int) {
	n := r.hi - r.lo
	if n < 2 {
		return
	}
	k := int32(parts(int(n), ranges))
	step, rest := n/k, n%k
	at := r.lo
	for i := range k - 1 {
		at += step
		if i < rest {
			at++
		}
		s.at = append(s.at, at)
	}
}

// look reads the sets at all positions of the round.
func (s *search) look() {
	if cap(s.ids) < len(s.at) {
		s.ids = make([]uint32, 2*len(s.at))
	}
	s.ids = s.ids[:len(s.at)]
	s.plane.getAll(s.ids, s.hashes, s.at)
}

// refine splits all ranges at the positions that were read and keeps the parts in which a rank
// drops out. It reports whether any of them is longer than a step.
func (s *search) refine(ids []uint32) bool {
	at := s.at[len(s.at)-len(ids):]
	sets := s.plane.sets
	finer := s.finer[:0]
	wide := false
	for _, r := range s.ranges {
		n := 0
		if r.hi-r.lo > 1 {
			n = parts(int(r.hi-r.lo), len(s.ranges)) - 1
		}
		part := span{lo: r.lo, low: r.low}
		for i, id := range ids[:n] {
			if id != part.low {
				part.hi, part.high = at[i], id
				if !sets.within(part.low, id) {
					finer = append(finer, part)
					wide = wide || part.hi-part.lo > 1
				}
				part.low = id
			}
			part.lo = at[i]
		}
		at, ids = at[n:], ids[n:]
		if part.high = r.high; part.high != part.low {
			if part.hi = r.hi; !sets.within(part.low, part.high) {
				finer = append(finer, part)
				wide = wide || part.hi-part.lo > 1
			}
		}
	}
	s.ranges, s.finer = finer, s.ranges
	return wide
}

// emit ends, at the given number of blocks, all active ranks that are not in the set.
func (s *search) emit(set uint32, blocks int) {
	var words []uint64
	if set >= singles {
		words = s.plane.sets.members(set)
	}
	n := len(s.dst)
	dst := slices.Grow(s.dst, s.left)[:n+s.left]
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
			dst[n] = Overlap{Slot: replica.Slot(i*64 + bits.TrailingZeros64(gone)), GPU: uint32(blocks)}
			n++
		}
		s.active[i] = w & keep
	}
	s.left -= n - len(s.dst)
	s.dst = dst[:n]
}
