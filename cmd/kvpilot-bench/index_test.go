package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestBenchIndexPrintsItsFigures(t *testing.T) {
	t.Parallel()
	args := []string{"index", "--ranks", "2", "--blocks", "6000", "--phase", "5ms", "--write-rate", "50000", "--open-rate", "50000", "--dir", t.TempDir()}
	var out, progress bytes.Buffer
	if err := run(t.Context(), append(args, "--json"), nil, &out, &progress); err != nil {
		t.Fatal(err)
	}
	var figures map[string]any
	if err := json.Unmarshal(out.Bytes(), &figures); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	for _, name := range []string{
		"block_ops_per_s", "lookup_p50_ns", "lookup_p99_ns", "lookup_p999_ns", "lookup_p99_ns_under_writes", "bytes_per_block",
		"lookup_bytes_per_block", "gc_pause_max_us", "gc_full_ms", "reset_ms", "snapshot_write_s", "snapshot_load_s", "two_core_speedup",
	} {
		if v, ok := figures[name].(float64); !ok || v <= 0 {
			t.Errorf("%s = %v, want a positive figure", name, figures[name])
		}
	}
	if !strings.Contains(progress.String(), "snapshot") {
		t.Errorf("progress %q does not name the steps", progress.String())
	}
	out.Reset()
	if err := run(t.Context(), args, nil, &out, &progress); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "lookup with writes") {
		t.Errorf("the table is %q", out.String())
	}
	if err := run(t.Context(), []string{"index", "--ranks", "0"}, nil, &out, &progress); err == nil {
		t.Error("no ranks: no error")
	}
}
