package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// store applies a stored event: count the copies, key what can be keyed, publish what is new.
func (r *rank) store(ev *kvblock.Stored) {
	if ev.Remote {
		r.totals.Remote += int64(len(ev.Hashes))
		return
	}
	r.dropGuessed()
	n := len(ev.Hashes)
	r.totals.Stored += int64(n)
	if n == 0 {
		return
	}
	p := r.part(ev)
	salt := r.key(p, ev)
	if r.ix.over(r, n) {
		r.storeKnown(p, ev, salt)
	} else {
		r.storeAll(p, ev, salt)
	}
	r.settle(p)
	if p == r.chains[kvblock.TierGPU] {
		if ev.Lookahead > 0 {
			r.lookahead.Store(int32(ev.Lookahead))
		}
		if r.keys[0] != 0 {
			r.recent.add(r.keys[0])
		}
		r.nameWaiting(p, ev, salt)
	}
	if len(r.beliefs) > 0 && p == r.chains[kvblock.TierGPU] {
		r.confirm(r.keys[n-1])
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
			r.warm += p.rev.touch(revID(h)) + plane.touch(p.cell(r.keys[from+i]))
		}
		for i, h := range run {
			r.storeOne(p, revID(h), r.keys[from+i], salt)
		}
	}
	r.ix.entries.Add(int64(p.rev.live - before))
}

// storeKnown applies the event when the budget is used up: further copies of known blocks are
// counted, and new blocks are left out.
func (r *rank) storeKnown(p *part, ev *kvblock.Stored, salt uint64) {
	for i, h := range ev.Hashes {
		if _, known := p.rev.get(revID(h)); known {
			r.storeOne(p, revID(h), r.keys[i], salt)
		} else {
			r.totals.Cut++
		}
	}
}

func (r *rank) storeOne(p *part, id uint64, key blockhash.Hash, salt uint64) {
	at, fresh := p.rev.add(id, key)
	switch {
	case fresh && key != 0:
		r.hold(p, key, salt)
	case fresh:
		p.unkeyed++
	case key != 0 && *at == 0:
		*at = uint64(key)
		p.unkeyed--
		r.hold(p, key, salt)
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
			if r.keys[i] == 0 {
				continue
			}
			if _, at := p.rev.find(revID(h)); at != nil && *at == 0 {
				*at = uint64(r.keys[i])
				p.unkeyed--
				r.hold(p, r.keys[i], salt)
			}
		}
		r.settle(p)
	}
}

// key fills r.keys with the event's keys, zero where a block cannot be keyed, and returns the
// salt's seed term; it is zero when there is none or the blocks are known already.
func (r *rank) key(p *part, ev *kvblock.Stored) (salt uint64) {
	n := len(ev.Hashes)
	r.keys = r.keys[:0]
	whole := ev.BlockSize > 0 && len(ev.Tokens) == n*ev.BlockSize
	partial := whole && r.learnSize(p, ev)
	switch {
	case ev.Ambiguous || ev.AdapterID != 0 && ev.Adapter == "":
		r.totals.Ambiguous += int64(n)
		r.keys = append(r.keys, make([]blockhash.Hash, n)...)
		return 0
	case partial:
		r.totals.Partial += int64(n)
		r.keys = append(r.keys, make([]blockhash.Hash, n)...)
		return 0
	}
	if unit := r.unit(p, ev); whole && unit > 0 && ev.BlockSize%unit == 0 {
		if parent, ok := r.parent(p, ev); ok {
			if salt = r.saltOf(parent, ev); ev.BlockSize == unit {
				r.extend(parent, ev, salt)
			} else {
				r.extendCoarse(parent, ev, unit, salt)
			}
			return salt
		}
		r.totals.Orphans += int64(n)
	} else if p.role == roleChain && len(ev.Tokens) > 0 {
		r.totals.Misshapen += int64(n)
	}
	for _, h := range ev.Hashes {
		r.keys = append(r.keys, r.named(p, h))
	}
	return 0
}

// learnSize learns the part's block size and reports whether the event is a partial block: a
// prefix that ends inside one. Such an event has one hash and less tokens than a block, so that an
// event of several blocks always shows the true size.
//
// Once a rank's size is settled, events of a larger one do not change it: the rank would seem empty. Only
// when no others come any more has the engine really changed, and then what it held before is void.
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
// taken for single blocks: their ends are found, what lies between is not.
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

// parent returns the key that the event's first block continues, zero for a root, and false
// when that is not known.
func (r *rank) parent(p *part, ev *kvblock.Stored) (blockhash.Hash, bool) {
	if !ev.HasParent {
		return 0, true
	}
	key, _ := p.rev.get(revID(ev.Parent))
	if key == 0 {
		key = r.named(p, ev.Parent)
	}
	return key, key != 0
}

// named returns the key under which another part's chain knows the block, or zero.
func (r *rank) named(p *part, h kvblock.EngineHash) blockhash.Hash {
	for _, c := range r.chains {
		if c == nil || c == p {
			continue
		}
		if key, _ := c.rev.get(revID(h)); key != 0 {
			return key
		}
	}
	return 0
}

// saltOf returns the salt's seed term: a root names its salt, others inherit it.
func (r *rank) saltOf(parent blockhash.Hash, ev *kvblock.Stored) uint64 {
	if ev.Salt != "" {
		return blockhash.SaltTerm(ev.Salt)
	}
	if parent == 0 || r.salts.live == 0 {
		return 0
	}
	term, _ := r.salts.get(revID(kvblock.EngineHash(parent)))
	return uint64(term)
}

// extend appends the keys of the event's blocks.
func (r *rank) extend(parent blockhash.Hash, ev *kvblock.Stored, salt uint64) {
	seed := blockhash.Namespace{Adapter: ev.Adapter}.Seed() + salt
	if ev.Items == nil {
		r.keys = blockhash.Extend(r.keys, parent, ev.Tokens, ev.BlockSize, seed)
		return
	}
	for i := range ev.Hashes {
		r.ids = r.ids[:0]
		if i < len(ev.Items) {
			for _, item := range ev.Items[i] {
				r.ids = append(r.ids, item.ID)
			}
		}
		tokens := ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]
		parent = blockhash.Next(parent, blockhash.LocalWith(tokens, seed, r.ids))
		r.keys = append(r.keys, parent)
	}
}

// extendCoarse appends the keys at the ends of blocks that are several chain blocks long. With
// multimodal items the chain blocks' own items are unknown, so that such blocks stay unkeyed
// unless the chain names them.
func (r *rank) extendCoarse(parent blockhash.Hash, ev *kvblock.Stored, unit int, salt uint64) {
	seed := blockhash.Namespace{Adapter: ev.Adapter}.Seed() + salt
	if ev.Items != nil {
		for _, h := range ev.Hashes {
			r.keys = append(r.keys, r.named(nil, h))
		}
		return
	}
	var fine [1]blockhash.Hash
	for i := range ev.Hashes {
		tokens := ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]
		for len(tokens) > 0 {
			parent = blockhash.Extend(fine[:0], parent, tokens[:unit], unit, seed)[0]
			tokens = tokens[unit:]
		}
		r.keys = append(r.keys, parent)
	}
}

// remove applies a removed event: one copy less of each block.
func (r *rank) remove(ev *kvblock.Removed) {
	if ev.Remote {
		r.totals.Remote += int64(len(ev.Hashes))
		return
	}
	r.totals.Removed += int64(len(ev.Hashes))
	p := r.find(ev.Tier, ev.Group)
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
	r.ix.entries.Add(int64(p.rev.live - before))
}

// removeRun takes a copy of each block. The searches in each table wait for memory together.
func (r *rank) removeRun(p *part, run []kvblock.EngineHash) {
	if len(run) > 1 {
		for _, h := range run {
			r.warm += p.rev.touch(revID(h))
		}
	}
	var gone [runKeys]blockhash.Hash
	n := 0
	plane := r.plane(p)
	for _, h := range run {
		key, last, known := p.rev.drop(revID(h))
		switch {
		case !known:
			r.totals.UnknownRemoved++
		case last && key != 0:
			gone[n] = key
			n++
			r.warm += plane.touch(p.cell(key))
		case last:
			p.unkeyed--
		}
	}
	for _, key := range gone[:n] {
		r.release(p, key)
	}
}

// over reports whether n more blocks of r would break the budget. The last tenth is kept for
// ranks below their fair share, so that a late rank is indexed too.
func (ix *Index) over(r *rank, n int) bool {
	budget := int64(ix.config.MaxBytes) / BlockCost
	held := ix.entries.Load() + int64(n)
	if held <= budget-budget/10 {
		return false
	}
	if held > budget {
		return true
	}
	own := 0
	for _, p := range r.parts {
		own += p.rev.live
	}
	return int64(own) > budget/int64(max(len(*ix.ranks.Load()), 1))
}
