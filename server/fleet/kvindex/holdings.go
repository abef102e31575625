package kvindex

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// holdings are the blocks that a rank holds: a part for each tier and attention group, and their part in the lookup tables. The rank's mu
// guards them.
type holdings struct {
	tiers   *[kvblock.Tiers]*plane // the index's
	entries *atomic.Int64          // the index's count
	writer  writer

	parts  []*part
	chains [kvblock.Tiers]*part // the part of each tier that forms the prefix chain
	// salts has the salt's seed term of each salted block: events name the salt at the root only.
	salts  revmap
	totals Totals
	warm   uint64 // keeps loads that only warm caches from being optimised away
}

// role is the meaning of a part's blocks for matching.
type role uint8

const (
	roleAside role = iota // counted only
	roleChain             // leading blocks held here are the match
	roleLimit             // cuts the match
)

// part has the blocks of a rank in one tier for one attention group.
type part struct {
	tier      kvblock.Tier
	group     int
	kind      kvblock.Kind
	window    int
	blockSize int
	role      role
	// settled: the block size is beyond doubt. odd counts the consecutive events that had another one.
	settled bool
	odd     int
	rev     revmap
	unkeyed int // entries without a key
	// gained is by how many the blocks held have changed since settle. The plane's count is not touched for each block:
	// writers on all processors share it.
	gained int64
	// dups counts further engine hashes that have the same key; nearly always empty.
	dups map[blockhash.Hash]uint32
}

// cell returns where the part's block key lies in its plane.
func (p *part) cell(key blockhash.Hash) uint64 {
	if p.role == roleLimit {
		return limitCell(key, p.group)
	}
	return spread(key)
}

func (h *holdings) plane(p *part) *plane { return h.tiers[p.tier] }

// find returns the part for a tier and group, or nil.
func (h *holdings) find(tier kvblock.Tier, group int) *part {
	if group < 0 {
		group = 0
	}
	for _, p := range h.parts {
		if p.tier == tier && p.group == group {
			return p
		}
	}
	return nil
}

// part returns the part that a stored event belongs to, made when it is the first of its kind.
func (h *holdings) part(ev *kvblock.Stored) *part {
	if p := h.find(ev.Tier, ev.Group); p != nil {
		return p
	}
	p := &part{tier: ev.Tier, group: max(ev.Group, 0), kind: ev.Kind, window: ev.Window}
	switch {
	case h.chains[p.tier] == nil && (p.kind == kvblock.KindFull || p.kind == kvblock.KindUnknown && p.group == 0):
		p.role = roleChain
		h.chains[p.tier] = p
	case p.tier == kvblock.TierGPU && (p.kind == kvblock.KindWindow || p.kind == kvblock.KindMamba):
		p.role = roleLimit
	}
	h.parts = append(h.parts, p)
	return p
}

// hold records that the rank has the block key in p. A salt of zero means none, or that the
// block is known with its salt already.
func (h *holdings) hold(p *part, key blockhash.Hash, salt uint64) {
	if salt != 0 || h.salts.live > 0 {
		id := revID(kvblock.EngineHash(key))
		term := blockhash.Hash(salt)
		if term == 0 {
			term, _ = h.salts.get(id)
		}
		if term != 0 {
			h.salts.room(1)
			h.salts.add(id, term)
		}
	}
	h.publish(p, key)
}

// publish makes the rank a holder of the block in the lookup table.
func (h *holdings) publish(p *part, key blockhash.Hash) {
	if p.role == roleAside {
		return
	}
	switch h.plane(p).add(p.cell(key), &h.writer) {
	case addNew:
		p.gained++
	case addDup:
		if p.dups == nil {
			p.dups = map[blockhash.Hash]uint32{}
		}
		p.dups[key]++
	case addFull:
		h.totals.Cut++
	}
}

// release ends one hold.
func (h *holdings) release(p *part, key blockhash.Hash) {
	if h.salts.live > 0 {
		h.salts.drop(revID(kvblock.EngineHash(key)))
	}
	if p.role == roleAside {
		return
	}
	if n := p.dups[key]; n > 0 {
		if p.dups[key] = n - 1; n == 1 {
			delete(p.dups, key)
		}
		return
	}
	if h.plane(p).remove(p.cell(key), &h.writer) {
		p.gained--
	}
}

// settle counts p's gains and losses. Callers of publish and release MUST call it at the end.
func (h *holdings) settle(p *part) {
	if p.gained != 0 {
		h.plane(p).held.Add(p.gained)
		p.gained = 0
	}
}

// runKeys is how many searches wait for memory together.
const runKeys = 32

// eachKey calls f for each keyed entry of p after its place in the lookup table was touched.
func (h *holdings) eachKey(p *part, f func(key blockhash.Hash)) {
	plane := h.plane(p)
	var run [runKeys]blockhash.Hash
	n := 0
	flush := func() {
		for _, key := range run[:n] {
			h.warm += plane.touch(p.cell(key))
		}
		for _, key := range run[:n] {
			f(key)
		}
		n = 0
	}
	p.rev.each(func(_, key *uint64) {
		if *key == 0 {
			return
		}
		run[n] = blockhash.Hash(*key)
		if n++; n == runKeys {
			flush()
		}
	})
	flush()
}

// drop forgets p's blocks.
func (h *holdings) drop(p *part) {
	h.eachKey(p, func(key blockhash.Hash) { h.release(p, key) })
	h.settle(p)
	h.entries.Add(int64(-p.rev.live))
	p.rev, p.unkeyed, p.dups = revmap{}, 0, nil
}

// dropGuesses forgets the blocks that a snapshot brought and no event has named since.
func (h *holdings) dropGuesses() {
	for _, p := range h.parts {
		before := p.rev.live
		p.rev.each(func(name, key *uint64) {
			if *name&refGuess == 0 {
				return
			}
			delete(p.rev.more, *name&^refMask)
			p.rev.free(name)
			if *key != 0 {
				h.release(p, blockhash.Hash(*key))
			} else {
				p.unkeyed--
			}
		})
		h.settle(p)
		h.entries.Add(int64(p.rev.live - before))
	}
}

func (h *holdings) storeOne(p *part, id uint64, key blockhash.Hash, salt uint64) {
	at, fresh := p.rev.add(id, key)
	switch {
	case fresh && key != 0:
		h.hold(p, key, salt)
	case fresh:
		p.unkeyed++
	case key != 0 && *at == 0:
		*at = uint64(key)
		p.unkeyed--
		h.hold(p, key, salt)
	}
}

// removeRun takes a copy of each block. The searches in each table wait for memory together.
func (h *holdings) removeRun(p *part, run []kvblock.EngineHash) {
	if len(run) > 1 {
		for _, name := range run {
			h.warm += p.rev.touch(revID(name))
		}
	}
	var gone [runKeys]blockhash.Hash
	n := 0
	plane := h.plane(p)
	for _, name := range run {
		key, last, known := p.rev.drop(revID(name))
		switch {
		case !known:
			h.totals.UnknownRemoved++
		case last && key != 0:
			gone[n] = key
			n++
			h.warm += plane.touch(p.cell(key))
		case last:
			p.unkeyed--
		}
	}
	for _, key := range gone[:n] {
		h.release(p, key)
	}
}

// parent returns the key that the event's first block continues, zero for a root, and false
// when that is not known.
func (h *holdings) parent(p *part, ev *kvblock.Stored) (blockhash.Hash, bool) {
	if !ev.HasParent {
		return 0, true
	}
	key, _ := p.rev.get(revID(ev.Parent))
	if key == 0 {
		key = h.named(p, ev.Parent)
	}
	return key, key != 0
}

// named returns the key under which another part's chain knows the block, or zero.
func (h *holdings) named(p *part, name kvblock.EngineHash) blockhash.Hash {
	for _, c := range h.chains {
		if c == nil || c == p {
			continue
		}
		if key, _ := c.rev.get(revID(name)); key != 0 {
			return key
		}
	}
	return 0
}

// saltOf returns the salt's seed term: a root names its salt, others inherit it.
func (h *holdings) saltOf(parent blockhash.Hash, ev *kvblock.Stored) uint64 {
	if ev.Salt != "" {
		return blockhash.SaltTerm(ev.Salt)
	}
	if parent == 0 || h.salts.live == 0 {
		return 0
	}
	term, _ := h.salts.get(revID(kvblock.EngineHash(parent)))
	return uint64(term)
}

// size counts the reverse entries.
func (h *holdings) size() (n int64) {
	for _, p := range h.parts {
		n += int64(p.rev.live)
	}
	return n
}

// publishParts puts all parts into the planes.
func (h *holdings) publishParts() {
	for _, p := range h.parts {
		h.eachKey(p, func(key blockhash.Hash) { h.publish(p, key) })
		h.settle(p)
	}
}
