package enginemodel

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// loraMachine is an engine with two slots, room for three adapters in host memory, and steps of 10 ms.
func loraMachine() *Machine {
	return New(Config{
		BlockSize: 16, Blocks: 1000, MaxBatchedTokens: 1000, MaxSeqs: 10,
		Timing:   Timing{PrefillRate: 1e12, HalfContext: 1e12, Base: 10 * time.Millisecond, Speed: 1},
		Adapters: Adapters{Slots: 2, Host: 3, Load: 100 * time.Millisecond, Activate: 5 * time.Millisecond},
	}, nil, &book{held: map[blockhash.Hash]int{}})
}

// serve runs one sequence of an adapter to its end and returns the milliseconds that it took.
func serve(m *Machine, adapter string) float64 {
	m.Submit(&Sequence{Prompt: 1, Most: 1, Adapter: adapter})
	step := m.Plan(1)
	took := 1000 * step.Seconds(1)
	m.Complete(1)
	return took
}

func TestAdaptersAreLoadedAndLeaveInTheOrderOfTheirUse(t *testing.T) {
	m := loraMachine()
	for i, use := range []struct {
		adapter string
		took    float64
	}{
		{"", 10}, {"a", 115}, {"a", 10}, {"b", 115}, {"a", 10},
		{"c", 115}, // in place of b
		{"b", 15},  // which host memory has, in place of a
		{"c", 10}, {"a", 15},
		{"d", 115}, // a, b and c are in host memory: the one used first of all, b, leaves
		{"b", 115},
	} {
		if took := serve(m, use.adapter); math.Abs(took-use.took) > 1e-6 {
			t.Errorf("use %d, of %q, took %v ms, want %v", i, use.adapter, took, use.took)
		}
	}
	UnloadAdapter(m, "b")
	LoadAdapter(m, "a") // which leaves one place; d and a are in host memory still
	if took := serve(m, "a"); math.Abs(took-15) > 1e-6 {
		t.Errorf("the first step after a was loaded took %v ms, want 15", took)
	}
	if took := serve(m, "b"); math.Abs(took-115) > 1e-6 {
		t.Errorf("b took %v ms after it was unloaded, want 115", took)
	}
}

// A request whose adapter would be one too many is overtaken by those behind it, and runs when an adapter has ended.
func TestAStepComputesNoMoreAdaptersThanItHasSlots(t *testing.T) {
	m := loraMachine()
	seqs := []*Sequence{}
	for _, adapter := range []string{"a", "b", "c", "a", "", "b"} {
		s := &Sequence{Prompt: 1, Most: 3, Adapter: adapter}
		seqs = append(seqs, s)
		m.Submit(s)
	}
	m.Plan(1)
	if got := AdaptersOf(m.Running()); !slices.Equal(got, []string{"a", "b"}) || len(m.Running()) != 5 {
		t.Fatalf("%d run, with the adapters %v", len(m.Running()), got)
	}
	if got := AdaptersOf(m.Waiting()); !slices.Equal(got, []string{"c"}) {
		t.Fatalf("%v wait, want c", got)
	}
	m.Complete(1)
	m.Abort(seqs[0])
	m.Abort(seqs[3])
	m.Plan(1)
	if got := AdaptersOf(m.Running()); !slices.Contains(got, "c") {
		t.Errorf("a has ended, and %v run", got)
	}
	m.Complete(1)
}
