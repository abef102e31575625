package kvindex

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// face is the part of a rank that every choice reads, without its lock. The faces of an index lie side by side: a choice reads all of them.
type face struct {
	feed      atomic.Uint32 // state
	blockSize atomic.Int32  // learned from events, 0 for unknown
	reported  atomic.Int32  // info.BlockSize
	lookahead atomic.Int32  // tokens behind a block that its name covers too
}

// rank has the blocks of one rank. Its writers take mu; lookups read the atomics only.
type rank struct {
	*face // of the rank's slot; its own until it has one
	mu    sync.Mutex
	ix    *Index
	info  RankInfo // the name never changes; the rest is guarded by mu
	state kvblock.FeedState
	gone  bool // removed; guarded by mu
	holdings
	loaded bool // the content is a snapshot's, not yet confirmed; guarded by mu
	// taken is when that snapshot was written. guarded by mu
	taken time.Time
	// position is where the rank's feed stood then, while the rank is parked; nil: unknown.
	position []byte

	guessed  bool // it has no events and was sent prompts; guarded by mu
	believed believed
	keys     keys // of the event that is applied; guarded by mu

	strides [kvblock.Tiers]atomic.Int32 // blocks per chunk of a lower tier, 0: one
	limits  atomic.Pointer[[]limit]
	recent  recent // guarded by mu
	warned  bool   // an event of an odd block size was logged; guarded by mu
}

// newRank returns a rank that holds nothing.
func newRank(ix *Index) *rank {
	r := &rank{ix: ix}
	r.tiers, r.entries = &ix.tiers, &ix.budget.held
	r.believed.plane, r.believed.writer = ix.beliefs, &r.writer
	return r
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
	r.believed.endAll()
	r.loaded = false
}

// publishAll puts a loaded rank's blocks into the planes and refreshes the lookups' fields.
func (r *rank) publishAll() {
	r.publishParts()
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
