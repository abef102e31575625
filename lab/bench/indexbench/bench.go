package indexbench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config says what to measure.
type Config struct {
	Ranks  int
	Blocks int    // held by all ranks together
	Trace  string // file in Mooncake's form; empty: a synthetic trace
	Seed   uint64
	// RemovedPerEvent is the number of hashes in one removed event; vLLM sends one.
	RemovedPerEvent int
	// Phase is how long each timed phase of lookups lasts at least.
	Phase time.Duration
	// WriteRate is the block operations per second applied during lookups.
	WriteRate int
	// OpenRate, when positive, adds the open loop: events and lookups at the trace's own times,
	// scaled so that this many block operations per second are offered.
	OpenRate int
	// Dir is where the snapshot is written, and removed; empty: the system's temporary folder.
	Dir      string
	Progress io.Writer
}

// Validate reports the first thing that cannot be measured.
func (c Config) Validate() error {
	switch {
	case c.Ranks < 1 || c.Ranks > kvindex.MaxRanks-1:
		return fmt.Errorf("ranks: %d is not in 1..%d", c.Ranks, kvindex.MaxRanks-1)
	case c.Blocks < c.Ranks*1000:
		return fmt.Errorf("blocks: %d is less than 1000 per rank", c.Blocks)
	case c.RemovedPerEvent < 1:
		return fmt.Errorf("removed per event: must be positive, not %d", c.RemovedPerEvent)
	case c.Phase <= 0 || c.WriteRate <= 0 || c.OpenRate < 0:
		return fmt.Errorf("phase and rates must be positive")
	}
	return nil
}

// Result has the figures. Times are as the caller of the index sees them.
type Result struct {
	FillFigures
	ApplyFigures
	LookupFigures
	WriteFigures
	MemoryFigures
	ResetFigures
	SnapshotFigures
	Open *OpenResult `json:"open_loop,omitempty"`
}

// FillFigures is the content of the index.
type FillFigures struct {
	Ranks        int     `json:"ranks"`
	Blocks       int64   `json:"blocks"`
	DistinctSets int     `json:"distinct_sets"`
	Prompts      int     `json:"prompts"`
	PromptBlocks float64 `json:"prompt_blocks_mean"`
	BestMatch    float64 `json:"best_match_blocks_mean"`
}

// ApplyFigures is the cost of events.
type ApplyFigures struct {
	BlockOpsPerS        float64 `json:"block_ops_per_s"`
	BlockOpsPerSOneCore float64 `json:"block_ops_per_s_one_core"`
	BlockOps            int     `json:"block_ops"`
	// ApplyCPU and LookupCPU are processor time, which other work on the machine changes less.
	ApplyCPU  float64 `json:"apply_cpu_ns_per_block"`
	LookupCPU float64 `json:"lookup_cpu_ns"`
}

// LookupFigures is the cost of lookups.
type LookupFigures struct {
	LookupP50  float64 `json:"lookup_p50_ns"`
	LookupP99  float64 `json:"lookup_p99_ns"`
	LookupP999 float64 `json:"lookup_p999_ns"`
	Lookups    float64 `json:"lookups_per_s"`
	TwoCore    float64 `json:"two_core_speedup"`
	// TwoCoreCPU is the speedup by processor time: the speedup of two free cores.
	TwoCoreCPU float64 `json:"two_core_speedup_by_processor_time"`
}

// WriteFigures is the cost of lookups and writes at the same time.
type WriteFigures struct {
	WritesPerS     float64 `json:"writes_per_s_beside_lookups"`
	LookupP50Write float64 `json:"lookup_p50_ns_under_writes"`
	LookupP99Write float64 `json:"lookup_p99_ns_under_writes"`
}

// MemoryFigures is the memory of the index and the cost of the garbage collector.
type MemoryFigures struct {
	BytesPerBlock       float64 `json:"bytes_per_block"`
	LookupBytesPerBlock float64 `json:"lookup_bytes_per_block"`
	HeapBytesPerBlock   float64 `json:"heap_bytes_per_block"`
	GCPauseMax          float64 `json:"gc_pause_max_us"`
	GCFull              float64 `json:"gc_full_ms"`
	AllocsPerLookup     float64 `json:"allocs_per_lookup"`
}

// ResetFigures is the cost of an engine's restart.
type ResetFigures struct {
	Reset         float64 `json:"reset_ms"`
	ResetBlocks   int     `json:"reset_blocks"`
	ResetMaxStall float64 `json:"lookup_max_us_during_reset"`
}

// SnapshotFigures is the size and the time of a snapshot.
type SnapshotFigures struct {
	SnapshotBytes int64   `json:"snapshot_bytes"`
	SnapshotWrite float64 `json:"snapshot_write_s"`
	SnapshotLoad  float64 `json:"snapshot_load_s"`
}

// bench is one run.
type bench struct {
	Config
	ix      *kvindex.Index
	fleet   *fleet
	prompts [][]blockhash.Hash // held-out prompts
	next    int                // first request that was not played
	// baseline is the heap in use before the index was made.
	baseline int64
	result   Result
}

// resetBlocks is the size of the rank whose reset is measured.
const resetBlocks = 40_000

// Run measures everything, which takes a minute or two at ten million blocks.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	b := &bench{Config: c, result: Result{FillFigures: FillFigures{Ranks: c.Ranks}}}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"read the trace and fill the index", b.fill},
		{"lookups", b.lookups},
		{"lookups with writes", b.lookupsBesideWrites},
		{"events", b.events},
		{"open loop", b.openLoop},
		{"memory and garbage collection", b.memory},
		{"reset", b.reset},
		{"snapshot", b.snapshot},
	} {
		begin := time.Now()
		fmt.Fprintf(c.Progress, "%-36s", step.what)
		if err := step.do(ctx); err != nil {
			return &b.result, fmt.Errorf("%s: %w", step.what, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fmt.Fprintf(c.Progress, " %6.1f s\n", time.Since(begin).Seconds())
	}
	return &b.result, nil
}

func (b *bench) newIndex() *kvindex.Index {
	config := kvindex.DefaultConfig()
	config.MaxBytes = max(config.MaxBytes, quantity.Bytes(b.Blocks)*kvindex.BlockCost*2)
	config.MaxRanks = max(config.MaxRanks, b.Ranks+1)
	return kvindex.New(config, kvindex.Params{})
}

func (b *bench) addRank(ix *kvindex.Index, slot int) error {
	info := kvindex.RankInfo{Rank: replica.Rank{Replica: replica.ID(fmt.Sprintf("r%d", slot))}, BlockSize: blockTokens}
	if err := ix.AddRank(replica.Slot(slot), info); err != nil {
		return err
	}
	ix.SetState(replica.Slot(slot), kvblock.FeedExact)
	return nil
}

// holdOut is how often a request of the last round is kept out of the index and asked for.
const holdOut = 4

// fill plays rounds of the trace until all caches are full, and a round more.
func (b *bench) fill(ctx context.Context) error {
	requests := SyntheticTrace(min(max(b.Blocks/200, 300), 12_000), b.Seed)
	if b.Trace != "" {
		var err error
		if requests, err = ReadTrace(b.Trace); err != nil {
			return err
		}
	}
	runtime.GC()
	b.baseline = heap()
	ix := b.newIndex()
	b.ix = ix
	for slot := range b.Ranks {
		if err := b.addRank(ix, slot); err != nil {
			return err
		}
	}
	b.fleet = newFleet(newPlayer(requests), b.Ranks, b.Blocks, b.RemovedPerEvent, b.Seed)
	a := applier{ix: ix, p: b.fleet.player}
	var s stream
	all := func(uint32) bool { return true }
	for full := -1; full < 0 || b.next < full+len(requests); b.next++ {
		if full >= 0 && b.next%holdOut == 0 {
			b.prompts = append(b.prompts, b.fleet.hashes(nil, b.next))
			continue
		}
		s.ops, s.names, s.parents = s.ops[:0], s.names[:0], s.parents[:0]
		b.fleet.record(&s, b.next)
		a.applyAll(&s, all)
		if b.next%500 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if full < 0 && b.fleet.held() >= b.Blocks-b.Blocks/200 {
				full = b.next
			}
			if b.next > 200*len(requests) {
				return fmt.Errorf("the trace is too small to fill %d blocks", b.Blocks)
			}
		}
	}
	b.describePrompts()
	st := ix.Stats()
	b.result.Blocks, b.result.DistinctSets = st.Held[kvblock.TierGPU], st.Sets
	return nil
}

// describePrompts says what the held-out prompts are like.
func (b *bench) describePrompts() {
	total, best := 0, 0
	var dst []kvindex.Overlap
	for _, p := range b.prompts {
		total += len(p)
		lead := uint32(0)
		for _, o := range b.ix.Match(dst[:0], p) {
			lead = max(lead, o.GPU)
		}
		best += int(lead)
	}
	b.result.Prompts = len(b.prompts)
	b.result.PromptBlocks = float64(total) / float64(len(b.prompts))
	b.result.BestMatch = float64(best) / float64(len(b.prompts))
}

// record makes the events of the next requests until n block operations are recorded.
func (b *bench) record(ctx context.Context, n int) (*stream, error) {
	s := &stream{}
	for s.blocks < n {
		b.fleet.record(s, b.next)
		if b.next++; b.next%500 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return s, nil
}

// memory measures the memory of the index alone and its cost to the collector.
func (b *bench) memory(context.Context) error {
	st := b.ix.Stats()
	held := float64(st.Held[kvblock.TierGPU])
	b.result.BytesPerBlock = float64(st.Bytes) / held
	b.result.LookupBytesPerBlock = float64(st.LookupBytes) / held
	b.fleet.caches = nil
	full := time.Duration(1 << 62)
	for range 4 {
		begin := time.Now()
		runtime.GC()
		full = min(full, time.Since(begin))
	}
	b.result.GCFull = full.Seconds() * 1e3
	prompts := int64(0)
	for _, p := range b.prompts {
		prompts += 8 * int64(cap(p))
	}
	b.result.HeapBytesPerBlock = float64(heap()-prompts-b.baseline) / held
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	longest := time.Duration(0)
	for _, p := range gc.Pause {
		longest = max(longest, p)
	}
	b.result.GCPauseMax = longest.Seconds() * 1e6
	return nil
}

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
