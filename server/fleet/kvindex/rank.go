package kvindex

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// face is what every choice reads of a rank, without its lock. Those of an index lie side by side: a choice reads all of them.
type face struct {
	feed      atomic.Uint32 // state
	blockSize atomic.Int32  // learned from events, 0 for unknown
	reported  atomic.Int32  // info.BlockSize
}

// rank is what one rank holds. Its writers take mu; lookups read the atomics only.
type rank struct {
	*face  // of the rank's slot; its own until it has one
	mu     sync.Mutex
	ix     *Index
	info   RankInfo // the name never changes; the rest is guarded by mu
	writer writer
	state  kvblock.FeedState
	gone   bool // removed; guarded by mu
	loaded bool // the content is a snapshot's, not yet confirmed; guarded by mu
	// taken is when that snapshot was written. guarded by mu
	taken time.Time
	// position is where the rank's feed stood then, while the rank is parked; nil: unknown.
	position []byte

	parts  []*part              // guarded by mu
	chains [kvblock.Tiers]*part // the part of each tier that forms the prefix chain; guarded by mu
	// salts has the salt's seed term of each salted block: events name the salt at the root only.
	salts   revmap // guarded by mu
	guessed bool   // it has no events and was sent prompts; guarded by mu
	// believed counts beliefs per block, beliefs are the live ones. guarded by mu
	believed revmap
	beliefs  []*Belief
	keys     []blockhash.Hash // scratch; guarded by mu
	ids      []string         // scratch; guarded by mu
	warm     uint64           // keeps loads that only warm caches from being optimised away; guarded by mu

	lookahead atomic.Int32                // tokens behind a block that its name covers too
	strides   [kvblock.Tiers]atomic.Int32 // blocks per chunk of a lower tier, 0: one
	limits    atomic.Pointer[[]limit]
	totals    Totals // guarded by mu
	recent    recent // guarded by mu
	warned    bool   // an event of an odd block size was logged; guarded by mu
}

// role is what a part's blocks mean for matching.
type role uint8

const (
	roleAside role = iota // counted only
	roleChain             // leading blocks held here are the match
	roleLimit             // cuts the match
)

// part is what a rank holds in one tier for one attention group.
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

func (r *rank) plane(p *part) *plane { return r.ix.tiers[p.tier] }

// find returns the part for a tier and group, or nil.
func (r *rank) find(tier kvblock.Tier, group int) *part {
	if group < 0 {
		group = 0
	}
	for _, p := range r.parts {
		if p.tier == tier && p.group == group {
			return p
		}
	}
	return nil
}

// part returns the part that a stored event belongs to, made when it is the first of its kind.
func (r *rank) part(ev *kvblock.Stored) *part {
	if p := r.find(ev.Tier, ev.Group); p != nil {
		return p
	}
	p := &part{tier: ev.Tier, group: max(ev.Group, 0), kind: ev.Kind, window: ev.Window}
	switch {
	case r.chains[p.tier] == nil && (p.kind == kvblock.KindFull || p.kind == kvblock.KindUnknown && p.group == 0):
		p.role = roleChain
		r.chains[p.tier] = p
	case p.tier == kvblock.TierGPU && (p.kind == kvblock.KindWindow || p.kind == kvblock.KindMamba):
		p.role = roleLimit
	}
	r.parts = append(r.parts, p)
	return p
}

// hold records that the rank has the block key in p. A salt of zero means none, or that the
// block is known with its salt already.
func (r *rank) hold(p *part, key blockhash.Hash, salt uint64) {
	if salt != 0 || r.salts.live > 0 {
		id := revID(kvblock.EngineHash(key))
		term := blockhash.Hash(salt)
		if term == 0 {
			term, _ = r.salts.get(id)
		}
		if term != 0 {
			r.salts.room(1)
			r.salts.add(id, term)
		}
	}
	r.publish(p, key)
}

// publish makes the rank a holder of the block in the lookup table.
func (r *rank) publish(p *part, key blockhash.Hash) {
	if p.role == roleAside {
		return
	}
	switch r.plane(p).add(p.cell(key), &r.writer) {
	case addNew:
		p.gained++
	case addDup:
		if p.dups == nil {
			p.dups = map[blockhash.Hash]uint32{}
		}
		p.dups[key]++
	case addFull:
		r.totals.Cut++
	}
}

// release ends one hold.
func (r *rank) release(p *part, key blockhash.Hash) {
	if r.salts.live > 0 {
		r.salts.drop(revID(kvblock.EngineHash(key)))
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
	if r.plane(p).remove(p.cell(key), &r.writer) {
		p.gained--
	}
}

// settle counts what p gained or lost. Callers of publish and release MUST call it at the end.
func (r *rank) settle(p *part) {
	if p.gained != 0 {
		r.plane(p).held.Add(p.gained)
		p.gained = 0
	}
}

// reset forgets everything.
func (r *rank) reset() {
	for _, p := range r.parts {
		r.drop(p)
	}
	r.parts, r.chains = nil, [kvblock.Tiers]*part{}
	r.salts = revmap{}
	r.blockSize.Store(0)
	r.lookahead.Store(0)
	for t := range r.strides {
		r.strides[t].Store(0)
	}
	r.setLimits()
	r.dropGuessed()
	r.endBeliefs()
	r.loaded = false
}

// runKeys is how many searches wait for memory together.
const runKeys = 32

// eachKey calls f for each keyed entry of p after its place in the lookup table was touched.
func (r *rank) eachKey(p *part, f func(key blockhash.Hash)) {
	plane := r.plane(p)
	var run [runKeys]blockhash.Hash
	n := 0
	flush := func() {
		for _, key := range run[:n] {
			r.warm += plane.touch(p.cell(key))
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

// drop forgets what p holds.
func (r *rank) drop(p *part) {
	r.eachKey(p, func(key blockhash.Hash) { r.release(p, key) })
	r.settle(p)
	r.ix.entries.Add(int64(-p.rev.live))
	p.rev, p.unkeyed, p.dups = revmap{}, 0, nil
}

// publishAll puts what a loaded rank holds into the planes and refreshes what lookups read.
func (r *rank) publishAll() {
	for _, p := range r.parts {
		r.eachKey(p, func(key blockhash.Hash) { r.publish(p, key) })
		r.settle(p)
	}
	if c := r.chains[kvblock.TierGPU]; c != nil {
		r.blockSize.Store(int32(c.blockSize))
	}
	for _, c := range r.chains[kvblock.TierCPU:] {
		if c != nil {
			r.learnStride(c)
		}
	}
	r.setLimits()
}

// dropGuesses forgets the blocks that a snapshot brought and no event has named since.
func (r *rank) dropGuesses() {
	r.loaded = false
	for _, p := range r.parts {
		before := p.rev.live
		p.rev.each(func(name, key *uint64) {
			if *name&refGuess == 0 {
				return
			}
			delete(p.rev.more, *name&^refMask)
			p.rev.free(name)
			if *key != 0 {
				r.release(p, blockhash.Hash(*key))
			} else {
				p.unkeyed--
			}
		})
		r.settle(p)
		r.ix.entries.Add(int64(p.rev.live - before))
	}
}
