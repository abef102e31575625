package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// store applies a stored event: count the copies, key the blocks that can be keyed, publish the new ones. Blocks in memory that is not the rank's own
// belong to its lowest tier.
func (r *rank) store(ev *kvblock.Stored) {
	if ev.Remote {
		r.totals.Remote += int64(len(ev.Hashes))
		elsewhere := *ev
		elsewhere.Tier = kvblock.TierDisk
		ev = &elsewhere
	}
	r.dropGuessed()
	n := len(ev.Hashes)
	r.totals.Stored += int64(n)
	if n == 0 {
		return
	}
	p := r.part(ev)
	salt := r.key(p, ev)
	if r.ix.budget.over(&r.holdings, n, len(r.ix.all())) {
		r.storeKnown(p, ev, salt)
	} else {
		r.storeAll(p, ev, salt)
	}
	r.settle(p)
	if p == r.chains[kvblock.TierGPU] {
		if ev.Lookahead > 0 {
			r.lookahead.Store(int32(ev.Lookahead))
		}
		if r.keys.list[0] != 0 {
			r.recent.add(r.keys.list[0])
		}
		r.nameWaiting(p, ev, salt)
	}
	if len(r.believed.live) > 0 && p == r.chains[kvblock.TierGPU] {
		r.believed.confirm(r.keys.list[n-1])
	}
}

// storeAll applies the event with room for all its blocks.
func (r *rank) storeAll(p *part, ev *kvblock.Stored, salt uint64) {
	n := len(ev.Hashes)
	p.rev.room(n)
	before := p.rev.live
	plane := r.plane(p)
	for from := 0; from < n; from += runKeys {
		run := ev.Hashes[from:min(from+runKeys, n)]
		for i, h := range run {
			r.warm += p.rev.touch(revID(h)) + plane.touch(p.cell(r.keys.list[from+i]))
		}
		for i, h := range run {
			r.storeOne(p, revID(h), r.keys.list[from+i], salt)
		}
	}
	r.entries.Add(int64(p.rev.live - before))
}

// storeKnown applies the event when the budget is used up: further copies of known blocks are
// counted, and new blocks are left out.
func (r *rank) storeKnown(p *part, ev *kvblock.Stored, salt uint64) {
	for i, h := range ev.Hashes {
		if _, known := p.rev.get(revID(h)); known {
			r.storeOne(p, revID(h), r.keys.list[i], salt)
		} else {
			r.totals.Cut++
		}
	}
}

// nameWaiting gives their keys to blocks of other parts that were announced before the chain
// named them: offloaded copies and limiting groups name blocks by hash only.
func (r *rank) nameWaiting(chain *part, ev *kvblock.Stored, salt uint64) {
	for _, p := range r.parts {
		if p == chain || p.unkeyed == 0 {
			continue
		}
		for i, h := range ev.Hashes {
			if r.keys.list[i] == 0 {
				continue
			}
			if _, at := p.rev.find(revID(h)); at != nil && *at == 0 {
				*at = uint64(r.keys.list[i])
				p.unkeyed--
				r.hold(p, r.keys.list[i], salt)
			}
		}
		r.settle(p)
	}
}

// key fills r.keys with the event's keys, zero where a block cannot be keyed, and returns the
// salt's seed term; it is zero when there is none or the blocks are known already.
func (r *rank) key(p *part, ev *kvblock.Stored) (salt uint64) {
	n := len(ev.Hashes)
	r.keys.list = r.keys.list[:0]
	whole := ev.BlockSize > 0 && len(ev.Tokens) == n*ev.BlockSize
	partial := whole && r.learnSize(p, ev)
	switch {
	case ev.Ambiguous || ev.AdapterID != 0 && ev.Adapter == "":
		r.totals.Ambiguous += int64(n)
		r.keys.none(n)
		return 0
	case partial:
		r.totals.Partial += int64(n)
		r.keys.none(n)
		return 0
	}
	if unit := r.unit(p, ev); whole && unit > 0 && ev.BlockSize%unit == 0 {
		if parent, ok := r.parent(p, ev); ok {
			switch salt = r.saltOf(parent, ev); {
			case ev.BlockSize == unit:
				r.keys.extend(parent, ev, salt)
			case ev.Items != nil:
				r.nameAll(nil, ev)
			default:
				r.keys.extendCoarse(parent, ev, unit, salt)
			}
			return salt
		}
		r.totals.Orphans += int64(n)
	} else if p.role == roleChain && len(ev.Tokens) > 0 {
		r.totals.Misshapen += int64(n)
	}
	r.nameAll(p, ev)
	return 0
}

// nameAll gives the event's blocks the keys under which other parts than p know them.
func (r *rank) nameAll(p *part, ev *kvblock.Stored) {
	for _, h := range ev.Hashes {
		r.keys.list = append(r.keys.list, r.named(p, h))
	}
}

// learnSize learns the part's block size and reports whether the event is a partial block: a
// prefix that ends inside one. Such an event has one hash and less tokens than a block, so that an
// event of several blocks always shows the true size.
//
// Once a rank's size is settled, events of a larger one do not change it: the rank would seem empty. Only
// when no others come any more has the engine really changed, and then its earlier blocks are void.
func (r *rank) learnSize(p *part, ev *kvblock.Stored) bool {
	chain := p.role == roleChain && p.tier == kvblock.TierGPU
	switch {
	case ev.BlockSize == p.blockSize:
		p.settled, p.odd = true, 0
		return false
	case len(ev.Hashes) == 1 && ev.BlockSize < r.wholeSize(p, ev):
		return true
	case chain && p.settled && ev.BlockSize > p.blockSize && p.odd < oddEvents:
		p.odd++
		r.oddSize(p, ev)
		return false
	case p.blockSize > 0:
		r.totals.Resized++ // the first one was partial, or the engine changed without a reset
		if chain && p.settled {
			r.drop(p)
		}
	}
	p.blockSize, p.odd = ev.BlockSize, 0
	p.settled = len(ev.Hashes) > 1 || ev.BlockSize == r.info.BlockSize
	switch {
	case p.role == roleLimit:
		r.setLimits()
	case p.role == roleChain && p.tier == kvblock.TierGPU:
		r.blockSize.Store(int32(ev.BlockSize))
		r.setLimits()
	case p.role == roleChain:
		r.learnStride(p)
	}
	return false
}

// oddEvents is how many consecutive events may have a larger block size before that is taken for the rank's.
const oddEvents = 16

// oddSize counts an event of a larger block size than the rank's, and logs it once. Its blocks are keyed
// where they end on the rank's own.
func (r *rank) oddSize(p *part, ev *kvblock.Stored) {
	r.totals.OddSize += int64(len(ev.Hashes))
	if !r.warned {
		r.warned = true
		r.ix.log.Warn("a KV event has a larger block size than the rank; its blocks are matched only in part",
			"replica", string(r.info.Rank.Replica), "rank", r.info.Rank.Index, "block_size", p.blockSize, "of_event", ev.BlockSize)
	}
}

// wholeSize is the size of a whole block of the part as far as it is known: learned, or as the
// replica reports it. A lower tier's blocks are at least the GPU's.
func (r *rank) wholeSize(p *part, ev *kvblock.Stored) int {
	switch {
	case p.blockSize > 0:
		return p.blockSize
	case p.role != roleChain:
		return 0
	case p.tier != kvblock.TierGPU && r.blockSize.Load() > 0:
		return int(r.blockSize.Load())
	case r.info.BlockSize%ev.BlockSize == 0:
		return r.info.BlockSize
	}
	return 0
}

// learnStride learns how many blocks a lower tier's chunks have. Chunks of 64 and more are
// taken for single blocks: their ends are found, the blocks between them are not.
func (r *rank) learnStride(p *part) {
	unit := int(r.blockSize.Load())
	if unit == 0 {
		unit = r.info.BlockSize
	}
	if unit == 0 || p.blockSize%unit != 0 || p.blockSize/unit >= 64 {
		return
	}
	k := p.blockSize / unit
	r.strides[p.tier].Store(int32(k))
	if k > 1 {
		r.ix.strides[p.tier].Or(1 << k)
	}
}

// unit is the size of the blocks that keys are chained over: the GPU chain's. It is zero, so
// that blocks wait for their names, while a limiting group is all that is known.
func (r *rank) unit(p *part, ev *kvblock.Stored) int {
	if n := int(r.blockSize.Load()); n > 0 {
		return n
	}
	if n := r.info.BlockSize; n > 0 && ev.BlockSize%n == 0 {
		return n
	}
	if p.role != roleChain {
		return 0
	}
	return ev.BlockSize
}

// remove applies a removed event: one copy less of each block.
func (r *rank) remove(ev *kvblock.Removed) {
	tier := ev.Tier
	if ev.Remote {
		r.totals.Remote += int64(len(ev.Hashes))
		tier = kvblock.TierDisk
	}
	r.totals.Removed += int64(len(ev.Hashes))
	p := r.find(tier, ev.Group)
	if p == nil {
		r.totals.UnknownRemoved += int64(len(ev.Hashes))
		return
	}
	before := p.rev.live
	for hashes := ev.Hashes; len(hashes) > 0; {
		run := hashes[:min(runKeys, len(hashes))]
		r.removeRun(p, run)
		hashes = hashes[len(run):]
	}
	r.settle(p)
	r.entries.Add(int64(p.rev.live - before))
}
