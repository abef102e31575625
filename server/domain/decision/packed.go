package decision

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// packed are a record's candidates in less memory. They differ little from each other, so only their differences are kept, in memory
// without pointers, which the garbage collector need not read.
type packed struct {
	names []replica.ID
	words []uint64
	pick  Candidate // the chosen one; zero without one
	summary
}

// summary holds facts about all candidates that are often asked for.
type summary struct {
	fastest   float64 // time to the first token among candidates that could be chosen; 0: none was predicted
	overlap   uint32  // the longest, in tokens
	servers   int     // candidates that could be chosen
	elsewhere bool    // one of another replica than the pick's could be chosen
}

// add counts a candidate. pick is the chosen one, or nil.
func (s *summary) add(c, pick *Candidate) {
	s.overlap = max(s.overlap, c.Overlap.Tokens())
	if c.Veto != VetoNone {
		return
	}
	s.servers++
	s.elsewhere = s.elsewhere || pick != nil && c.Replica != pick.Replica
	if c.TTFT > 0 && (s.fastest == 0 || c.TTFT < s.fastest) {
		s.fastest = c.TTFT
	}
}

// image is a Candidate without its Replica, as the words of its memory.
type image [(unsafe.Sizeof(Candidate{}) - slotAt) / wordSize]uint64

const (
	wordSize = 8
	slotAt   = unsafe.Offsetof(Candidate{}.RankID) + unsafe.Offsetof(RankID{}.Slot)
)

// imageOf is c's own memory. Fields after Replica have no pointers.
func imageOf(c *Candidate) *image {
	return (*image)(unsafe.Add(unsafe.Pointer(c), slotAt))
}

// Packer packs candidates. The zero Packer is ready; it is for one goroutine at a time.
type Packer struct{ words []uint64 }

// Pack sets the candidates of r, which has none, to a packed copy of list; r.Chosen is an index in it. names are the replicas of list's
// candidates where the caller has them in a slice that never changes: it is shared. Nil makes one.
func (k *Packer) Pack(r *Ranks, list []Candidate, names []replica.ID) {
	if len(list) == 0 {
		return
	}
	if len(names) != len(list) {
		names = make([]replica.ID, len(list))
		for i := range list {
			names[i] = list[i].Replica
		}
	}
	p := &packed{names: names}
	var pick *Candidate
	if r.Chosen >= 0 && r.Chosen < len(list) {
		pick = &list[r.Chosen]
		p.pick = *pick
	}
	k.words = slices.Grow(k.words[:0], len(list)*(1+len(image{})))
	words, end, before := k.words[:cap(k.words)], 0, new(image)
	for i := range list {
		p.add(&list[i], pick)
		now, mask, at := imageOf(&list[i]), uint64(0), end
		end++
		for w, value := range now {
			words[end] = value // counts if it differs
			if value != before[w] {
				mask |= 1 << w
				end++
			}
		}
		words[at], before = mask, now
	}
	p.words = slices.Clone(words[:end])
	r.packed = p
}

// list unpacks the candidates.
func (p *packed) list() []Candidate {
	list := make([]Candidate, len(p.names))
	words, before := p.words, new(image)
	for i := range list {
		list[i].Replica = p.names[i]
		now := imageOf(&list[i])
		*now = *before
		mask := words[0]
		words = words[1:]
		for ; mask != 0; mask &= mask - 1 {
			now[bits.TrailingZeros64(mask)] = words[0]
			words = words[1:]
		}
		before = now
	}
	return list
}
