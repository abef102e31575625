package kvindex

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Params has the arguments of New.
type Params struct {
	Scope scope.Scope
	// Feeds follow the ranks' events; nil: a loaded rank is a guess until events name its blocks.
	Feeds Feeds
}

// RankInfo describes a rank to AddRank. Unknown numbers are 0 and learned from events.
type RankInfo struct {
	// Rank names the rank across processes; snapshots use it. A rank without a name is left out of them.
	Rank replica.Rank
	// BlockSize is the size in tokens that the rank's replica reports.
	BlockSize int
	// Capacity is the number of blocks of the rank's GPU cache.
	Capacity int
}

// Index holds which rank holds which block. Its parts: the roster of ranks, the tables that lookups read, and snapshots. Its own methods
// change the ranks' blocks.
type Index struct {
	config Config
	log    *slog.Logger
	roster
	lookup
	snapshots
	budget budget
}

// New returns an empty index. config must be valid.
func New(config Config, params Params) *Index {
	ix := &Index{config: config, log: params.Scope.Log(), budget: newBudget(config)}
	if ix.log == nil {
		ix.log = slog.New(slog.DiscardHandler)
	}
	ix.faces = make([]face, config.MaxRanks)
	ix.list.Store(&[]*rank{})
	ix.lookup.begin(&ix.roster)
	ix.snapshots.ix, ix.feeds, ix.parked.budget = ix, params.Feeds, &ix.budget
	ix.observe(params.Scope.Meters())
	return ix
}

// Run ends expired beliefs until ctx ends, and writes the snapshot file when it is due and
// at the end.
func (ix *Index) Run(ctx context.Context) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var due <-chan time.Time
	if ix.config.Snapshot != "" && ix.config.SnapshotEvery > 0 {
		save := time.NewTicker(ix.config.SnapshotEvery)
		defer save.Stop()
		due = save.C
	}
	for {
		select {
		case <-ctx.Done():
			ix.save()
			return nil
		case now := <-tick.C:
			ix.Expire(now)
		case <-due:
			ix.save()
		}
	}
}

// AddRank makes slot known. A rank from a snapshot keeps its content; its
// state is then the feed's next report. It is an error when the slot is in use or above max_ranks.
func (ix *Index) AddRank(slot replica.Slot, info RankInfo) error {
	if int(slot) >= ix.config.MaxRanks {
		return fmt.Errorf("kvindex: rank slot %d is above max_ranks (%d): its cache is not indexed", slot, ix.config.MaxRanks)
	}
	ix.roster.mu.Lock()
	defer ix.roster.mu.Unlock()
	if ix.rank(slot) != nil {
		return fmt.Errorf("kvindex: rank slot %d was added twice", slot)
	}
	r := ix.parked.take(info.Rank, false)
	if r == nil {
		r = newRank(ix)
	}
	r.mu.Lock()
	if info.BlockSize == 0 {
		info.BlockSize = r.info.BlockSize // a snapshot's
	}
	r.info, r.face = info, &ix.faces[slot]
	r.reported.Store(int32(info.BlockSize))
	r.writer.slot = slot
	r.publishAll()
	r.mu.Unlock()
	ix.put(slot, r)
	return nil
}

// RemoveRank forgets the rank and everything it held.
func (ix *Index) RemoveRank(slot replica.Slot) {
	ix.roster.mu.Lock()
	defer ix.roster.mu.Unlock()
	r := ix.rank(slot)
	if r == nil {
		return
	}
	ix.put(slot, nil)
	ix.stores.set(slot, "", ix.sets.words)
	r.mu.Lock()
	r.reset()
	r.writer.forget(ix.sets)
	r.gone = true
	r.feed.Store(uint32(kvblock.FeedNone))
	r.reported.Store(0)
	ix.past.add(r.totals)
	r.mu.Unlock()
}

// UpdateRank adds new facts about a rank. Zero fields change nothing.
func (ix *Index) UpdateRank(slot replica.Slot, info RankInfo) {
	ix.locked(slot, func(r *rank) {
		if info.BlockSize > 0 {
			r.info.BlockSize = info.BlockSize
			r.reported.Store(int32(info.BlockSize))
		}
		if info.Capacity > 0 {
			r.info.Capacity = info.Capacity
		}
	})
}

// SetStore says which store the rank shares with others; empty for none. Each rank of a store loads every block that any of them has announced in
// its lowest tier.
func (ix *Index) SetStore(slot replica.Slot, store string) {
	if int(slot) < ix.config.MaxRanks {
		ix.stores.set(slot, store, ix.sets.words)
	}
}

// Store applies a stored event.
func (ix *Index) Store(slot replica.Slot, ev *kvblock.Stored) {
	ix.locked(slot, func(r *rank) { r.store(ev) })
}

// Remove applies a removed event.
func (ix *Index) Remove(slot replica.Slot, ev *kvblock.Removed) {
	ix.locked(slot, func(r *rank) { r.remove(ev) })
}

// Clear forgets the rank's blocks in a tier, or in all of them.
func (ix *Index) Clear(slot replica.Slot, tier kvblock.Tier, all bool) {
	ix.locked(slot, func(r *rank) {
		for _, p := range r.parts {
			if all || p.tier == tier {
				r.drop(p)
			}
		}
	})
}

// Reset forgets everything that the rank held: a new engine life, or events were lost.
func (ix *Index) Reset(slot replica.Slot) {
	ix.locked(slot, func(r *rank) { r.totals.Resets++; r.reset() })
}

// SetState records how far the rank may be trusted. A rank that begins or ceases to publish
// events loses its blocks: guesses are not facts. When it becomes exact, blocks that a snapshot brought and no event has named are forgotten.
func (ix *Index) SetState(slot replica.Slot, s kvblock.FeedState) {
	ix.locked(slot, func(r *rank) {
		if s == kvblock.FeedNone && r.state != s {
			r.reset()
		} else if s != kvblock.FeedNone {
			r.dropGuessed()
		}
		if s == kvblock.FeedExact && r.loaded {
			r.loaded = false
			r.dropGuesses()
		}
		r.state = s
		r.feed.Store(uint32(s))
	})
}
