package transfer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// priorLoad is the time of loads from a tier of an engine without any. Host memory: a token of a 70B model has 320 KiB of cache (80 layers, 8 heads
// of 128 numbers in 16 bits), which four GPUs load at 25 GB/s each, a PCIe 4.0 bus of 16 lanes, in 3.3 µs. A token of an 8B model has 128 KiB, and one
// GPU loads it in 5.2 µs. Stores: a fifth of that rate, four fast disks or a network of 200 Gbit/s.
func priorLoad(tier kvblock.Tier) Model {
	if tier == kvblock.TierCPU {
		return Model{Start: 0.005, PerToken: 4e-6}
	}
	return Model{Start: 0.02, PerToken: 20e-6}
}

// loadKey names a lane of Loads.
type loadKey struct {
	kind any
	tier kvblock.Tier
}

// Loads has the lanes from the tiers below the GPU, for each kind of engine. The zero value is ready. It is safe for concurrent use.
type Loads struct {
	mu     sync.Mutex
	all    map[loadKey]*Lane      // guarded by mu
	shared map[kvblock.Tier]*Lane // of all kinds beyond mostLanes; guarded by mu
}

// of returns the lane from a tier of engines of one kind, which is made when it is new. kind must be comparable.
func (l *Loads) of(kind any, tier kvblock.Tier) *Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := loadKey{kind, tier}
	if lane := l.all[key]; lane != nil {
		return lane
	}
	lane := newLane("", "", priorLoad(tier))
	if len(l.all) >= mostLanes {
		if known := l.shared[tier]; known != nil {
			return known
		}
		if l.shared == nil {
			l.shared = map[kvblock.Tier]*Lane{}
		}
		l.shared[tier] = lane
		return lane
	}
	if l.all == nil {
		l.all = map[loadKey]*Lane{}
	}
	l.all[key] = lane
	return lane
}

const (
	// shareMemory is the number of requests over which the share of a Tier is averaged.
	shareMemory = 8
	// leastShare is the share below which nothing of a tier is counted on.
	leastShare = 0.05
)

// Tier is one tier below the GPU of one rank. It is safe for concurrent use.
type Tier struct {
	lane atomic.Pointer[Lane]

	mu    sync.Mutex    // serialises Found
	share atomic.Uint64 // the bits of a float64
	seen  atomic.Int64
}

// newTier returns a tier whose loads take as long as lane says, and of which every block is found.
func newTier(lane *Lane) *Tier {
	t := &Tier{}
	t.lane.Store(lane)
	t.share.Store(math.Float64bits(1))
	return t
}

// move gives the tier the lane of another kind.
func (t *Tier) move(lane *Lane) { t.lane.Store(lane) }

// Share is the share of the tokens held in the tier that the engine has found, of late, from 0 to 1.
func (t *Tier) Share() float64 { return math.Float64frombits(t.share.Load()) }

// Seen counts the requests behind Share.
func (t *Tier) Seen() int64 { return t.seen.Load() }

// Model predicts the time of loads.
func (t *Tier) Model() Model { return t.lane.Load().Model() }

// Found notes that a request's engine has found so many of the tokens that the index said were held in the tier.
func (t *Tier) Found(found, held int) {
	if held <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	share := t.Share()
	share += (min(1, max(0, float64(found)/float64(held))) - share) / shareMemory
	t.share.Store(math.Float64bits(share))
	t.seen.Add(1)
}

// Learn adds a load of so many tokens in so many seconds.
func (t *Tier) Learn(tokens int, seconds float64) { t.lane.Load().Learn(tokens, seconds) }

// addTo adds to l the load of so many tokens that the rank holds in the tier by the index, and so many more by the word of a directory, of which the
// engine finds the share found.
func (t *Tier) addTo(l *decision.Loading, held, more uint32, found float64) {
	tokens := t.counted(held) + found*float64(more)
	if tokens == 0 {
		return
	}
	m := t.Model()
	l.Loadable += uint32(tokens)
	l.Load += m.seconds(tokens)
}

// counted is how many of so many tokens are counted on.
func (t *Tier) counted(held uint32) float64 {
	share := t.Share()
	if share < leastShare {
		return 0
	}
	return share * float64(held)
}

// Tiers are the tiers below the GPU of one rank. Loads of one rank follow each other. They are safe for concurrent use.
type Tiers struct {
	Host, Store *Tier
	// Named is the trust in a directory: the share of the blocks that only it names and that the engine has found. Its times are the store's.
	Named *Tier
	until *atomic.Int64 // when the last booked load ends, in nanoseconds on the caller's scale
}

// NewTiers returns the tiers of a rank of a kind.
func NewTiers(loads *Loads, kind any) Tiers {
	store := loads.of(kind, kvblock.TierDisk)
	return Tiers{Host: newTier(loads.of(kind, kvblock.TierCPU)), Store: newTier(store), Named: newTier(store), until: new(atomic.Int64)}
}

// Move gives the tiers the lanes of another kind.
func (t *Tiers) Move(loads *Loads, kind any) {
	t.Host.move(loads.of(kind, kvblock.TierCPU))
	t.Store.move(loads.of(kind, kvblock.TierDisk))
	t.Named.move(loads.of(kind, kvblock.TierDisk))
}

// Loading predicts the load of the part of a prompt that the rank holds below its GPU, at now in nanoseconds. Only a directory names the last
// named tokens of that part.
func (t *Tiers) Loading(o *decision.Overlap, named uint32, now int64) (l decision.Loading) {
	below := Below(o, named)
	share := t.Named.counted(1)
	t.Host.addTo(&l, o.CPU-below.Host, below.Host, share)
	t.Store.addTo(&l, o.Disk-below.Store, below.Store, share)
	l.Named = named
	if wait := t.until.Load() - now; wait > 0 && l.Load > 0 {
		l.LoadWait = float32(time.Duration(wait).Seconds())
		l.Load += float64(l.LoadWait)
	}
	return l
}

// Times are the times of loads from a rank's tiers; a tier without samples was never loaded from.
type Times struct{ Host, Store Model }

// Learned returns the times that this router has seen itself.
func (t *Tiers) Learned() (times Times) {
	for tier, to := range map[*Tier]*Model{t.Host: &times.Host, t.Store: &times.Store} {
		if m, own := tier.lane.Load().learned(); own {
			*to = m
		}
	}
	return times
}

// Import takes the times that another router has seen, for tiers that this one has seen no load from.
func (t *Tiers) Import(times Times) {
	for tier, m := range map[*Tier]Model{t.Host: times.Host, t.Store: times.Store} {
		if m.Samples > 0 {
			tier.lane.Load().take(m)
		}
	}
}

// Parts are parts of a prompt in a rank's host memory and in its store, in tokens.
type Parts struct{ Host, Store uint32 }

// Below splits the last named tokens of the part of a prompt below a rank's GPU by tier.
func Below(o *decision.Overlap, named uint32) Parts {
	store := min(o.Disk, named)
	return Parts{Host: min(o.CPU, named-store), Store: store}
}

// Book notes at now that a load of so many seconds begins after the ones before it.
func (t *Tiers) Book(seconds float64, now int64) {
	for {
		until := t.until.Load()
		if t.until.CompareAndSwap(until, max(until, now)+int64(seconds*float64(time.Second))) {
			return
		}
	}
}
