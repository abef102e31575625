package replay

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

var update = flag.Bool("update", false, "write the golden report")

// A small trace on small engines, under a policy that learns nothing: the model of the engines and of what
// lies between them may only change on purpose. go test ./sim/replay -run Golden -update writes it.
func TestGoldenReport(t *testing.T) {
	trace, err := ReadTrace(filepath.Join("testdata", "golden.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	p := Profiles()[0]
	p.CacheTokens = 22_000
	r := play(t, Options{Traffic: Traffic{Trace: trace, Rates: []float64{2.5}}, Engines: Engines{Replicas: 3, Block: 16, Profile: p, Delays: LocalDelays(), Hardware: Hardware{Speeds: []float64{1, 1, 2}}}, Rules: Rules{Policies: []decision.Policy{decision.RoundRobin}}, Runs: Runs{Seeds: 2}})
	if n := r.Policies[decision.RoundRobin]; n.Preemptions == 0 || n.HitRate == 0 || len(n.Work) != 2 {
		t.Errorf("the trace shows too little: %+v", n.Numbers)
	}
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "golden.json")
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatal(err)
	}
	if !alike(a, b) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// alike compares JSON values; numbers may differ in the last digits, which depend on the processor.
func alike(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), math.Abs(b))
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !alike(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k := range a {
			if !alike(a[k], b[k]) {
				return false
			}
		}
		return true
	}
	return a == b
}
