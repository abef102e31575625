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

// summary is what is often asked of all candidates.
type summary struct {
	fastest   float64 // time to the first token of those that could be chosen; 0: none was predicted
	overlap   uint32  // the longest, in tokens
	servers   int     // those that could be chosen
	elsewhere bool    // one of another replica than the pick's could be chosen
}

// add counts a candidate. pick is the chosen one, or nil.
func (s *summary) add(c, pick *Candidate) {
	s.overlap = max(s.overlap, c.GPU+c.CPU+c.Disk)
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
type image [(unsafe.Sizeof(Candidate{}) - unsafe.Offsetof(Candidate{}.Slot)) / wordSize]uint64

const wordSize = 8

// imageOf is c's own memory. Fields after Replica have no pointers.
func imageOf(c *Candidate) *image {
	return (*image)(unsafe.Add(unsafe.Pointer(c), unsafe.Offsetof(c.Slot)))
}

// Packer packs candidates. The zero Packer is ready; it is for one goroutine at a time.
type Packer struct{ words []uint64 }

// Pack sets the candidates of d, which has none, to a packed copy of list; d.Chosen is an index in it. names are the replicas of list's
// candidates where the caller has them in a slice that never changes: it is shared. Nil makes one.
func (k *Packer) Pack(d *Decision, list []Candidate, names []replica.ID) {
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
	if d.Chosen >= 0 && d.Chosen < len(list) {
		pick = &list[d.Chosen]
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
	d.packed = p
}

// summary is of those listed.
func (d *Decision) summary() summary {
	if p := d.compact(); p != nil {
		return p.summary
	}
	var s summary
	pick := d.Pick()
	for i := range d.Candidates {
		s.add(&d.Candidates[i], pick)
	}
	return s
}

// compact are the packed candidates; nil when Candidates has them.
func (d *Decision) compact() *packed {
	if d.Candidates != nil {
		return nil
	}
	return d.packed
}

// List returns Candidates, or a copy of them where they are packed. It must not be changed.
func (d *Decision) List() []Candidate {
	p := d.compact()
	if p == nil {
		return d.Candidates
	}
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

// Listed is how many candidates List has.
func (d *Decision) Listed() int {
	if p := d.compact(); p != nil {
		return len(p.names)
	}
	return len(d.Candidates)
}

// Fastest is the lowest predicted time to the first token of those listed that could be chosen; 0 when none was predicted.
func (d *Decision) Fastest() float64 { return d.summary().fastest }

// BestOverlap is the longest overlap of those listed, in tokens.
func (d *Decision) BestOverlap() int { return int(d.summary().overlap) }

// Servers is how many of those listed could be chosen.
func (d *Decision) Servers() int { return d.summary().servers }

// HasOtherReplica reports whether a rank of another replica could have been chosen.
func (d *Decision) HasOtherReplica() bool {
	return d.Pick() != nil && (d.Elsewhere || d.summary().elsewhere)
}
