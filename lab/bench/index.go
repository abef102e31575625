package bench

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/indexbench"
)

func newIndexCommand() *cobra.Command {
	c := indexbench.Config{}
	cmd := figuresCommand("index", "Measure the KV index: events applied, lookups, memory, snapshots",
		func(cmd *cobra.Command) (*indexbench.Result, error) {
			c.Progress = cmd.ErrOrStderr()
			return indexbench.Run(cmd.Context(), c)
		}, printIndexBench)
	cmd.Long = `Plays a request trace against simulated ranks whose LRU caches announce what they store and
evict, and measures how fast the index applies these events and answers lookups of prompts
that were held out. An applied event is visible: no work is left when the clock stops.

Without --trace a synthetic conversation trace is used. Ten million blocks need about 2 GiB.`
	f := cmd.Flags()
	f.IntVar(&c.Ranks, "ranks", 64, "simulated ranks")
	f.IntVar(&c.Blocks, "blocks", 10_000_000, "blocks held by all ranks together")
	f.StringVar(&c.Trace, "trace", "", "trace file in Mooncake's form (.jsonl or .jsonl.gz)")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of all chance")
	f.IntVar(&c.RemovedPerEvent, "removed-per-event", 128, "hashes per removal at most; 1: each removal by itself")
	f.DurationVar(&c.Phase, "phase", 3*time.Second, "least duration of each timed phase")
	f.IntVar(&c.WriteRate, "write-rate", 2_000_000, "block operations per second during lookups")
	f.IntVar(&c.OpenRate, "open-rate", 1_000_000, "block operations per second offered in the open loop; 0: no open loop")
	f.StringVar(&c.Dir, "dir", "", "folder for the snapshot, which is removed again")
	return cmd
}

func printIndexBench(w io.Writer, r *indexbench.Result) error {
	lines := []struct {
		what, format string
		values       []any
	}{
		{"index", "%d ranks, %d blocks, %d distinct rank sets", []any{r.Ranks, r.Blocks, r.DistinctSets}},
		{"prompts", "%d, mean %.0f blocks, best match %.0f", []any{r.Prompts, r.PromptBlocks, r.BestMatch}},
		{"events applied", "%.2f M block-ops/s on two cores, %.2f M on one (%.0f ns of processor each)", []any{r.BlockOpsPerS / 1e6, r.BlockOpsPerSOneCore / 1e6, r.ApplyCPU}},
		{"lookup", "p50 %.1f µs, p99 %.1f µs, p99.9 %.1f µs, %.2f allocations", []any{r.LookupP50 / 1e3, r.LookupP99 / 1e3, r.LookupP999 / 1e3, r.AllocsPerLookup}},
		{"lookup rate", "%.0f/s on one core, %.2f times as many on two (%.2f by processor time)", []any{r.Lookups, r.TwoCore, r.TwoCoreCPU}},
		{"lookup with writes", "p50 %.1f µs, p99 %.1f µs at %.2f M block-ops/s", []any{r.LookupP50Write / 1e3, r.LookupP99Write / 1e3, r.WritesPerS / 1e6}},
		{"memory per block", "%.1f B, of which lookup %.1f B; %.1f B of heap", []any{r.BytesPerBlock, r.LookupBytesPerBlock, r.HeapBytesPerBlock}},
		{"garbage collector", "full collection %.1f ms, longest pause %.0f µs", []any{r.GCFull, r.GCPauseMax}},
		{"reset", "%d blocks in %.1f ms, longest lookup during it %.0f µs", []any{r.ResetBlocks, r.Reset, r.ResetMaxStall}},
		{"snapshot", "%.0f MB, written in %.2f s, loaded in %.2f s", []any{float64(r.SnapshotBytes) / 1e6, r.SnapshotWrite, r.SnapshotLoad}},
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-22s"+l.format+"\n", append([]any{l.what}, l.values...)...); err != nil {
			return err
		}
	}
	if o := r.Open; o != nil {
		_, err := fmt.Fprintf(w, "%-22s%.2f M block-ops/s offered, kept up: %v, visible p99 %.0f µs late, lookup p50 %.1f µs, p99 %.1f µs\n",
			"open loop", o.OfferedPerS/1e6, o.KeptUp, o.ApplyP99, o.LookupP50/1e3, o.LookupP99/1e3)
		return err
	}
	return nil
}
