package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/kvblock"
)

// rank is what one rank holds. Its writers take mu; lookups read the atomics only.
type rank struct {
	mu     sync.Mutex
	ix     *Index
	info   RankInfo
	writer writer
	state  kvblock.FeedState
	gone   bool // removed; guarded by mu
	loaded bool // the content is a snapshot's, not yet confirmed; guarded by mu

	parts  []*part              // guarded by mu
	chains [kvblock.Tiers]*part // the part of each tier that forms the prefix chain; guarded by mu
	// salts has the salt's seed term of each salted block: events name the salt at the root only.
	salts revmap // guarded by mu
	// approx is what a rank without events was sent; nil for others. guarded by mu
	approx *lru
	// believed counts beliefs per block, beliefs are the live ones. guarded by mu
	believed revmap
	beliefs  []*Belief
	keys     []blockhash.Hash // scratch; guarded by mu
	ids      []string         // scratch; guarded by mu

	feed      atomic.Uint32 // state, for readers without the lock
	blockSize atomic.Int32
	strides   [kvblock.Tiers]atomic.Int32 // blocks per chunk of a lower tier, 0: one
	limits    atomic.Pointer[[]limit]
	counts    counts // guarded by mu
	resets    int64  // guarded by mu
}

// counts are a rank's totals since it was added.
type counts struct {
	stored, removed               int64 // blocks named by events
	orphans                       int64 // blocks whose parent was not known
	ambiguous, partial, misshapen int64 // blocks that cannot be keyed, by reason
	unknownRemoved                int64 // removals of blocks that were not known
	cut                           int64 // blocks not indexed because of the budget
	remote                        int64 // blocks on another rank's memory, ignored
	resized                       int64 // changes of the block size without a reset
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
	rev       revmap
	unkeyed   int // entries without a key
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

// hold records that the rank has the block key in p.
func (r *rank) hold(p *part, key blockhash.Hash, salt uint64) {
	if salt != 0 {
		r.salts.room(1)
		r.salts.add(revID(kvblock.EngineHash(key)), blockhash.Hash(salt))
	}
	if p.role == roleAside {
		return
	}
	switch plane := r.plane(p); plane.add(p.cell(key), &r.writer) {
	case addNew:
		plane.held.Add(1)
	case addDup:
		if p.dups == nil {
			p.dups = map[blockhash.Hash]uint32{}
		}
		p.dups[key]++
	case addFull:
		r.counts.cut++
	}
}

// unhold takes back one hold.
func (r *rank) unhold(p *part, key blockhash.Hash) {
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
	if plane := r.plane(p); plane.remove(p.cell(key), &r.writer) {
		plane.held.Add(-1)
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
	for t := range r.strides {
		r.strides[t].Store(0)
	}
	r.setLimits()
	r.dropApprox()
	r.endBeliefs()
	r.loaded = false
}

// drop forgets what p holds. Its keys are read in runs, so that the searches in the lookup
// table wait for memory together.
func (r *rank) drop(p *part) {
	plane := r.plane(p)
	var run [16]blockhash.Hash
	n := 0
	flush := func() {
		for _, key := range run[:n] {
			plane.touch(p.cell(key))
		}
		for _, key := range run[:n] {
			r.unhold(p, key)
		}
		n = 0
	}
	for i := 0; i < len(p.rev.words); i += 2 {
		if p.rev.words[i] == 0 || p.rev.words[i+1] == 0 {
			continue
		}
		run[n] = blockhash.Hash(p.rev.words[i+1])
		if n++; n == len(run) {
			flush()
		}
	}
	flush()
	r.ix.entries.Add(int64(-p.rev.live))
	p.rev, p.unkeyed, p.dups = revmap{}, 0, nil
}

// publishAll puts what a parked rank holds into the planes and refreshes what lookups read.
func (r *rank) publishAll() {
	for _, p := range r.parts {
		for i := 0; i < len(p.rev.words); i += 2 {
			if p.rev.words[i] != 0 && p.rev.words[i+1] != 0 {
				r.hold(p, blockhash.Hash(p.rev.words[i+1]), 0)
			}
		}
	}
	if c := r.chains[kvblock.TierGPU]; c != nil {
		r.blockSize.Store(int32(c.blockSize))
	}
	r.setLimits()
}
