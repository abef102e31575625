package decision

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Packed is a Decision in less memory, for records that are kept long and rarely read. It is immutable. The candidates of a
// decision differ little from each other, so only their differences are kept, in memory without pointers: the garbage collector need not read it.
type Packed struct {
	head  Decision // Candidates is nil
	names []replica.ID
	words []uint64
}

// image is a Candidate without its Replica, as the words of its memory.
type image [(unsafe.Sizeof(Candidate{}) - unsafe.Offsetof(Candidate{}.Slot)) / wordSize]uint64

const wordSize = 8

// imageOf is c's own memory. Fields after Replica have no pointers.
func imageOf(c *Candidate) *image {
	return (*image)(unsafe.Add(unsafe.Pointer(c), unsafe.Offsetof(c.Slot)))
}

// changed has a bit for each word of now that is not as in before.
func changed(before, now *image) (mask uint64) {
	for i := range now {
		if now[i] != before[i] {
			mask |= 1 << i
		}
	}
	return mask
}

// Pack packs d. names are Names of another Packed, which are shared if they are the same; nil shares none.
func Pack(d *Decision, names []replica.ID) *Packed {
	p := &Packed{head: *d, names: names}
	p.head.Candidates = nil
	if len(d.Candidates) == 0 {
		p.names = nil
		return p
	}
	if !slices.EqualFunc(names, d.Candidates, func(name replica.ID, c Candidate) bool { return name == c.Replica }) {
		p.names = make([]replica.ID, len(d.Candidates))
		for i := range d.Candidates {
			p.names[i] = d.Candidates[i].Replica
		}
	}
	size, before := len(d.Candidates), new(image)
	for i := range d.Candidates {
		now := imageOf(&d.Candidates[i])
		size += bits.OnesCount64(changed(before, now))
		before = now
	}
	p.words, before = make([]uint64, 0, size), new(image)
	for i := range d.Candidates {
		now := imageOf(&d.Candidates[i])
		mask := changed(before, now)
		p.words = append(p.words, mask)
		for ; mask != 0; mask &= mask - 1 {
			p.words = append(p.words, now[bits.TrailingZeros64(mask)])
		}
		before = now
	}
	return p
}

// Head is the decision without its candidates. It must not be changed, and its Pick must not be used.
func (p *Packed) Head() *Decision { return &p.head }

// Names are the replicas of the candidates. They must not be changed.
func (p *Packed) Names() []replica.ID { return p.names }

// Picked is the chosen candidate's replica; empty when there is none.
func (p *Packed) Picked() replica.ID {
	if p.head.Chosen < 0 || p.head.Chosen >= len(p.names) {
		return ""
	}
	return p.names[p.head.Chosen]
}

// Unpack makes the decision that was packed, bit by bit. Each call makes another one.
func (p *Packed) Unpack() *Decision {
	d := p.head
	if len(p.names) == 0 {
		return &d
	}
	d.Candidates = make([]Candidate, len(p.names))
	words, before := p.words, new(image)
	for i := range d.Candidates {
		d.Candidates[i].Replica = p.names[i]
		now := imageOf(&d.Candidates[i])
		*now = *before
		mask := words[0]
		words = words[1:]
		for ; mask != 0; mask &= mask - 1 {
			now[bits.TrailingZeros64(mask)] = words[0]
			words = words[1:]
		}
		before = now
	}
	return &d
}
