package kvindex

import (
	"math/bits"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// limit is a group that cuts a rank's match where its blocks are missing.
type limit struct {
	group int
	// stride is how many chain blocks one of its blocks spans.
	stride int
	// need is how many of its blocks before the end of a match must be held: the window's, or
	// one state of a Mamba group.
	need int
	// mamba: the state must lie exactly at the end. A window may also reach back to the root.
	mamba bool
}

// limitCell is where a limiting group's block lies in the GPU plane.
func limitCell(key blockhash.Hash, group int) uint64 {
	hi, lo := bits.Mul64(uint64(key)^0xA0761D6478BD642F, 0xE7037ED1A0B428DB+2*uint64(group))
	return hi ^ lo
}

// setLimits publishes the rank's limiting groups for lookups.
func (r *rank) setLimits() {
	var list []limit
	unit := int(r.blockSize.Load())
	for _, p := range r.parts {
		if p.role != roleLimit || unit == 0 || p.blockSize == 0 || p.blockSize%unit != 0 {
			continue
		}
		l := limit{group: p.group, stride: p.blockSize / unit, need: 1, mamba: p.kind == kvblock.KindMamba}
		if !l.mamba {
			l.need = max((p.window-1+p.blockSize-1)/p.blockSize, 1)
		}
		list = append(list, l)
	}
	old := r.limits.Load()
	had, has := old != nil, len(list) > 0
	switch {
	case has:
		r.limits.Store(&list)
	case had:
		r.limits.Store(nil)
	}
	if has && !had {
		r.ix.limited.Add(1)
	} else if had && !has {
		r.ix.limited.Add(-1)
	}
}

// limitedLead returns the longest end up to lead that all limiting groups allow.
func (l *lookup) limitedLead(slot replica.Slot, hashes []blockhash.Hash, lead int) int {
	r := l.ranks.rank(slot)
	if r == nil {
		return 0
	}
	limits := r.limits.Load()
	if limits == nil {
		return lead
	}
	for again := true; again && lead > 0; {
		again = false
		for _, g := range *limits {
			if end := l.limitEnd(slot, hashes, g, lead); end < lead {
				lead, again = end, len(*limits) > 1
			}
		}
	}
	return lead
}

// limitEnd returns the longest end up to lead that one group allows.
func (l *lookup) limitEnd(slot replica.Slot, hashes []blockhash.Hash, g limit, lead int) int {
	gpu := l.tiers[kvblock.TierGPU]
	end := lead / g.stride // counted in the group's own blocks
	run := 0               // consecutive held blocks, going down from end
	for at := end; at > 0; at-- {
		if at%8 == 0 {
			for i := at; i > max(at-8, 0); i-- {
				gpu.touch(limitCell(hashes[i*g.stride-1], g.group))
			}
		}
		id := gpu.get(limitCell(hashes[at*g.stride-1], g.group))
		if !l.sets.has(id, slot) {
			end, run = at-1, 0
			continue
		}
		if run++; run == g.need {
			return end * g.stride
		}
	}
	if g.mamba {
		return 0
	}
	return end * g.stride // everything from the root up to end is held
}
