package kvindex

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Params is what code passes to New.
type Params struct {
	Log   *slog.Logger         // nil: none
	Meter metric.MeterProvider // nil: none
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

// Index holds which rank holds which block.
type Index struct {
	config Config
	log    *slog.Logger
	feeds  Feeds
	sets   *setTable
	// tiers are facts, one plane per tier; the GPU plane also has, under keys of their own, the
	// blocks of limiting groups. guesses and beliefs lie apart.
	tiers   [kvblock.Tiers]*plane
	guesses *guesses
	beliefs *plane
	// ranks by slot; replaced as a whole under mu.
	ranks atomic.Pointer[[]*rank]
	faces []face // by slot
	// limited counts the ranks with matches that limiting groups cut.
	limited atomic.Int32
	// strides has bit k set when a rank's tier ever held chunks of k > 1 blocks.
	strides [kvblock.Tiers]atomic.Uint64
	// entries counts reverse entries of all ranks; it is what the budget bounds.
	entries atomic.Int64
	// searches are lent to lookups, so that these allocate nothing.
	searches sync.Pool
	unknown  atomic.Int64 // calls for slots that do not exist
	retries  atomic.Int64 // lookups started over

	mu     sync.Mutex
	parked map[replica.Rank]parked // loaded from a snapshot, not yet added; guarded by mu
	past   Totals                  // of ranks that are gone; guarded by mu
}

// parked is a snapshot's rank that waits for AddRank.
type parked struct {
	rank  *rank
	until time.Time
}

// parkFor is how long such a rank is kept: replicas are found within minutes of a start.
const parkFor = 15 * time.Minute

// New returns an empty index. config must be valid.
func New(config Config, params Params) *Index {
	ix := &Index{config: config, faces: make([]face, config.MaxRanks), log: params.Log, feeds: params.Feeds, sets: newSetTable(config.MaxRanks)}
	if ix.log == nil {
		ix.log = slog.New(slog.DiscardHandler)
	}
	for t := range ix.tiers {
		ix.tiers[t] = newPlane(ix.sets)
	}
	ix.beliefs = newPlane(ix.sets)
	ix.guesses = newGuesses(ix.sets, config.MaxRanks)
	words := ix.sets.words
	ix.searches.New = func() any { return &search{active: make([]uint64, words)} }
	ix.ranks.Store(&[]*rank{})
	newMetrics(params.Meter, ix)
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
			ix.expire(now)
		case <-due:
			ix.save()
		}
	}
}

// AddRank makes slot known. A rank from a snapshot keeps its content; its
// state is then what the feed reports next. It is an error when the slot is in use or above max_ranks.
func (ix *Index) AddRank(slot replica.Slot, info RankInfo) error {
	if int(slot) >= ix.config.MaxRanks {
		return fmt.Errorf("kvindex: rank slot %d is above max_ranks (%d): its cache is not indexed", slot, ix.config.MaxRanks)
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.rank(slot) != nil {
		return fmt.Errorf("kvindex: rank slot %d was added twice", slot)
	}
	r := ix.parked[info.Rank].rank
	if r != nil && info.Rank != (replica.Rank{}) && r.position == nil { // else Claim takes it
		delete(ix.parked, info.Rank)
	} else {
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
	list := slices.Clone(*ix.ranks.Load())
	for len(list) <= int(slot) {
		list = append(list, nil)
	}
	list[slot] = r
	ix.ranks.Store(&list)
	return nil
}

// RemoveRank forgets the rank and everything it held.
func (ix *Index) RemoveRank(slot replica.Slot) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	r := ix.rank(slot)
	if r == nil {
		return
	}
	list := slices.Clone(*ix.ranks.Load())
	list[slot] = nil
	ix.ranks.Store(&list)
	r.mu.Lock()
	r.reset()
	r.writer.forget(ix.sets)
	r.gone = true
	r.feed.Store(uint32(kvblock.FeedNone))
	r.reported.Store(0)
	ix.past.add(r.totals)
	r.mu.Unlock()
}

// UpdateRank adds what is newly known about a rank. Zero fields change nothing.
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

// rank returns the rank of slot, or nil.
func (ix *Index) rank(slot replica.Slot) *rank {
	list := *ix.ranks.Load()
	if int(slot) >= len(list) {
		return nil
	}
	return list[slot]
}

// locked calls f with the rank of slot under its lock; an unknown slot is counted.
func (ix *Index) locked(slot replica.Slot, f func(*rank)) {
	r := ix.rank(slot)
	if r == nil {
		ix.unknown.Add(1)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		ix.unknown.Add(1)
		return
	}
	f(r)
}

// Store applies a stored event.
func (ix *Index) Store(slot replica.Slot, ev *kvblock.Stored) {
	ix.locked(slot, func(r *rank) { r.store(ev) })
}

// Remove applies a removed event.
func (ix *Index) Remove(slot replica.Slot, ev *kvblock.Removed) {
	ix.locked(slot, func(r *rank) { r.remove(ev) })
}

// Clear forgets what the rank holds in a tier, or in all of them.
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
// events loses what it held: guesses are not facts. When it becomes exact, what a snapshot
// brought and no event has named is forgotten.
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

// State returns the state of the rank's feed; FeedNone for slots that do not exist.
func (ix *Index) State(slot replica.Slot) kvblock.FeedState {
	state, _ := ix.Rank(slot)
	return state
}

// BlockSize returns the rank's block size in tokens: learned from events, else as reported,
// else 0.
func (ix *Index) BlockSize(slot replica.Slot) int {
	_, size := ix.Rank(slot)
	return size
}

// Rank returns State and BlockSize in one look.
func (ix *Index) Rank(slot replica.Slot) (state kvblock.FeedState, blockSize int) {
	if int(slot) >= len(ix.faces) {
		return kvblock.FeedNone, 0
	}
	f := &ix.faces[slot]
	if blockSize = int(f.blockSize.Load()); blockSize == 0 {
		blockSize = int(f.reported.Load())
	}
	return kvblock.FeedState(f.feed.Load()), blockSize
}

// Reach returns how many of a prompt's tokens the rank can take from its cache at most, whatever it
// holds: the last token is always computed, and an engine that speculates names a block only when
// the tokens behind it are there.
func (ix *Index) Reach(slot replica.Slot, promptTokens int) int {
	ahead := 1
	if r := ix.rank(slot); r != nil {
		ahead = max(ahead, int(r.lookahead.Load()))
	}
	return max(0, promptTokens-ahead)
}
