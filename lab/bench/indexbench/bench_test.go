package indexbench_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/indexbench"
)

func small() indexbench.Config {
	return indexbench.Config{
		Ranks: 4, Blocks: 20_000, Seed: 1, RemovedPerEvent: 128, Phase: 20 * time.Millisecond, WriteRate: 100_000, OpenRate: 100_000,
	}
}

func TestRunMeasuresEverything(t *testing.T) {
	var progress bytes.Buffer
	c := small()
	c.Dir, c.Progress = t.TempDir(), &progress
	r, err := indexbench.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Blocks < 19_000 || r.Blocks > 20_000 {
		t.Errorf("%d blocks held, want nearly 20000", r.Blocks)
	}
	for name, v := range map[string]float64{
		"block_ops_per_s": r.BlockOpsPerS, "lookup_p50_ns": r.LookupP50, "lookup_p99_ns": r.LookupP99, "bytes_per_block": r.BytesPerBlock,
		"lookup_bytes_per_block": r.LookupBytesPerBlock, "reset_ms": r.Reset, "snapshot_load_s": r.SnapshotLoad, "two_core_speedup": r.TwoCore,
		"best_match": r.BestMatch, "lookup_p99_ns_under_writes": r.LookupP99Write, "gc_full_ms": r.GCFull, "open loop": r.Open.AchievedPerS,
	} {
		if v <= 0 {
			t.Errorf("%s = %v, want a positive figure", name, v)
		}
	}
	if progress.Len() == 0 {
		t.Error("no progress was shown")
	}
}

// TestASnapshotIsCheckedAfterTheCachesWereRenewed: writes that evict all that the held-out prompts match are no fault of the snapshot.
func TestASnapshotIsCheckedAfterTheCachesWereRenewed(t *testing.T) {
	c := small()
	c.Dir, c.OpenRate, c.Ranks, c.Blocks = t.TempDir(), 0, 2, 6000
	c.WriteRate, c.Phase = 2_000_000, 50*time.Millisecond
	if _, err := indexbench.Run(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestRunRefusesWhatCannotBeMeasured(t *testing.T) {
	for name, change := range map[string]func(*indexbench.Config){
		"no ranks":     func(c *indexbench.Config) { c.Ranks = 0 },
		"few blocks":   func(c *indexbench.Config) { c.Blocks = 10 },
		"no removals":  func(c *indexbench.Config) { c.RemovedPerEvent = 0 },
		"no time":      func(c *indexbench.Config) { c.Phase = 0 },
		"missing file": func(c *indexbench.Config) { c.Trace = filepath.Join(t.TempDir(), "none") },
	} {
		c := small()
		change(&c)
		if _, err := indexbench.Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReadTrace(t *testing.T) {
	const lines = `{"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
{"timestamp": 6, "input_length": 3, "output_length": 1, "hash_ids": [2]}
`
	plain := filepath.Join(t.TempDir(), "trace.jsonl")
	packed := plain + ".gz"
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(lines))
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(packed, b.Bytes(), 0o600)
	}
	if err == nil {
		err = os.WriteFile(plain, []byte(lines), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{plain, packed} {
		got, err := indexbench.ReadTrace(path)
		if err != nil || len(got) != 1 || got[0].InputLength != 600 || len(got[0].HashIDs) != 2 {
			t.Errorf("ReadTrace(%s) = %+v, %v, want the one request that fills a block", path, got, err)
		}
	}
	if err := os.WriteFile(plain, []byte(lines+"{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := indexbench.ReadTrace(plain); err == nil {
		t.Error("a broken line gave no error")
	}
}

func TestTheSyntheticTraceIsLikeTheRealOne(t *testing.T) {
	ids, requests := 0, indexbench.SyntheticTrace(5000, 3)
	seen := map[uint32]bool{}
	shared := 0
	for _, r := range requests {
		ids += len(r.HashIDs)
		for _, id := range r.HashIDs {
			if seen[id] {
				shared++
			}
			seen[id] = true
		}
	}
	if mean := float64(ids) / float64(len(requests)); mean < 15 || mean > 40 {
		t.Errorf("%.1f ids per request, want about 23", mean)
	}
	if part := float64(shared) / float64(ids); part < .25 || part > .7 {
		t.Errorf("%.2f of the ids were seen before, want about 0.4", part)
	}
}
