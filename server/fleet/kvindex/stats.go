package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Stats is the index at one moment.
type Stats struct {
	Ranks []RankStats
	// Held counts the (rank, block) pairs that can be matched, per tier; Believed the pairs of beliefs.
	Held     [kvblock.Tiers]int64
	Believed int64
	// Blocks counts all blocks that ranks are known to hold, blocks without a key too; MaxBlocks
	// is the budget.
	Blocks, MaxBlocks int64
	// LookupBytes is the memory of the lookup tables and the rank sets, Bytes the whole index's.
	LookupBytes, Bytes int64
	// Sets is the number of distinct rank sets.
	Sets int
	// Unknown counts calls for slots that do not exist, Retries lookups that started over.
	Unknown, Retries int64
	// Cut is set when the budget left out any block of a present rank.
	Cut bool
	// Parked counts ranks that a snapshot brought and that were not added yet.
	Parked int
	Total  Totals
}

// RankStats is one rank at one moment.
type RankStats struct {
	Slot      replica.Slot
	Rank      replica.Rank
	State     kvblock.FeedState
	BlockSize int
	Capacity  int
	// Blocks counts the distinct blocks held per tier, all attention groups together; Unkeyed the blocks among them that cannot be matched;
	// Guessed the blocks of a rank without events.
	Blocks           [kvblock.Tiers]int
	Unkeyed, Guessed int
	Bytes            int64
	// FromSnapshot is set while the content is a snapshot's that no full replay has confirmed.
	FromSnapshot bool
	Totals
}

// Totals count since a rank was added; the index's totals include ranks that are gone.
type Totals struct {
	// Stored and Removed count blocks named by events, UnknownRemoved removals of unknown blocks.
	Stored, Removed, UnknownRemoved int64
	// Orphans counts blocks that continue an unknown one, Ambiguous, Partial and Misshapen the blocks that cannot be keyed for other
	// reasons, Remote the blocks, stored and removed, in memory that is not the rank's own.
	Orphans, Ambiguous, Partial, Misshapen, Remote int64
	// OddSize counts blocks of another size than their rank's.
	OddSize int64
	// Cut counts blocks left out because of the budget, Resized changes of the block size
	// without a reset, Resets resets.
	Cut, Resized, Resets int64
}

func (t *Totals) add(o Totals) {
	t.Stored += o.Stored
	t.Removed += o.Removed
	t.UnknownRemoved += o.UnknownRemoved
	t.Orphans += o.Orphans
	t.Ambiguous += o.Ambiguous
	t.Partial += o.Partial
	t.Misshapen += o.Misshapen
	t.Remote += o.Remote
	t.OddSize += o.OddSize
	t.Cut += o.Cut
	t.Resized += o.Resized
	t.Resets += o.Resets
}

// Stats returns the index's numbers; it locks one rank at a time.
func (ix *Index) Stats() Stats {
	s := Stats{
		Blocks: ix.budget.held.Load(), MaxBlocks: ix.budget.most,
		Believed: ix.beliefs.held.Load(), Unknown: ix.unknown.Load(), Retries: ix.retries.Load(),
	}
	s.LookupBytes = ix.sets.bytes.Load() + ix.beliefs.bytes.Load() + ix.guesses.bytes.Load() + ix.guesses.heads.bytes.Load()
	for t, p := range ix.tiers {
		s.Held[t] = p.held.Load()
		s.LookupBytes += p.bytes.Load()
	}
	s.Held[kvblock.TierGPU] += ix.guesses.held.Load()
	s.Bytes = s.LookupBytes
	ix.sets.mu.Lock()
	s.Sets = ix.sets.live
	ix.sets.mu.Unlock()
	ix.roster.mu.Lock()
	s.Total = ix.past
	ix.roster.mu.Unlock()
	n, bytes := ix.parked.size()
	s.Parked, s.Bytes = n, s.Bytes+bytes
	for slot, r := range ix.all() {
		if r == nil {
			continue
		}
		rs := r.stats()
		rs.Slot = replica.Slot(slot)
		s.Bytes += rs.Bytes
		s.Cut = s.Cut || rs.Cut > 0
		s.Total.add(rs.Totals)
		s.Ranks = append(s.Ranks, rs)
	}
	return s
}

func (r *rank) stats() RankStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := RankStats{
		Rank: r.info.Rank, State: r.state, BlockSize: int(r.blockSize.Load()), Capacity: r.info.Capacity,
		FromSnapshot: r.loaded, Totals: r.totals, Bytes: r.salts.bytes() + r.believed.counts.bytes(),
	}
	if r.guessed {
		var bytes int64
		s.Guessed, bytes = r.ix.guesses.of(r.writer.slot)
		s.Blocks[kvblock.TierGPU] = s.Guessed
		s.Bytes += bytes
	}
	for _, p := range r.parts {
		s.Blocks[p.tier] += p.rev.live
		s.Unkeyed += p.unkeyed
		s.Bytes += p.rev.bytes()
	}
	return s
}
