package enginemodel_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// lowered notes the changes of lower tiers in order.
type lowered struct {
	stored
	events []string
}

func (l *lowered) Kept(tier kvblock.Tier, _ *enginemodel.Sequence, from, to int) {
	l.events = append(l.events, fmt.Sprintf("%v+%d-%d", tier, from, to))
}

func (l *lowered) Dropped(tier kvblock.Tier, key blockhash.Hash) {
	l.events = append(l.events, fmt.Sprintf("%v-%d", tier, key))
}

func named(from, n int) (list []blockhash.Hash) {
	for i := range n {
		list = append(list, blockhash.Hash(from+i))
	}
	return list
}

// small is an engine of 8 blocks of 4 tokens that computes 1,000 tokens a second.
func small(sink enginemodel.Sink) *enginemodel.Machine {
	return enginemodel.New(enginemodel.Config{
		BlockSize: 4, Blocks: 8, MaxBatchedTokens: 64, MaxSeqs: 4, WholePrompts: true, Timing: enginemodel.Timing{PrefillRate: 1000, HalfContext: 1e9, Speed: 2},
	}, nil, sink)
}

// serve runs a prompt of n blocks and one token to its end.
func serve(m *enginemodel.Machine, from, n int) (s *enginemodel.Sequence, loads []enginemodel.Load, computed int) {
	s = &enginemodel.Sequence{Prompt: 4*n + 1, Most: 1, Keys: named(from, n)}
	m.Submit(s)
	for s.Live() {
		step := m.Plan(1)
		loads = append(loads, step.Loads...)
		computed += step.PromptTokens
		if step.Steps > 0 {
			m.Complete(1)
			continue
		}
		if len(step.Loads) == 0 {
			panic("it hangs")
		}
		for _, l := range step.Loads {
			m.Arrive(l.Sequence)
		}
	}
	return s, loads, computed
}

func TestEvictedBlocksAreLoadedFromHostMemory(t *testing.T) {
	sink := &lowered{}
	m := small(sink)
	host := enginemodel.NewLower(kvblock.TierCPU, 16)
	host.Start, host.PerBlock = 0.1, 0.01
	enginemodel.AddTiers(m, sink, host)
	if s, loads, computed := serve(m, 1, 6); s.Cached() != 0 || len(loads) != 0 || computed != 25 {
		t.Fatalf("a cold prompt: %d cached, %d loads, %d computed", s.Cached(), len(loads), computed)
	}
	serve(m, 100, 7) // displaces it from the GPU
	if got := m.Pool().Match(named(1, 6)); got != 0 {
		t.Fatalf("%d blocks are left on the GPU, want none", got)
	}
	s, loads, computed := serve(m, 1, 6)
	if s.Cached() != 24 || computed != 1 || m.Pool().Match(named(1, 6)) != 6 {
		t.Errorf("%d tokens cached, %d computed, want 24 and 1; %d blocks are on the GPU again", s.Cached(), computed, m.Pool().Match(named(1, 6)))
	}
	if len(loads) != 1 || loads[0].Seconds != (0.1+6*0.01)/2 {
		t.Errorf("loads %+v, want one of six blocks at twice the speed", loads)
	}
	if c := m.Counts(); c.Hits != 0 || c.Loaded != 24 {
		t.Errorf("%d tokens hit and %d loaded, want 0 and 24", c.Hits, c.Loaded)
	}
	serve(m, 200, 7)
	m.Plan(1)
	// The prompt that was used last stays, the other one makes room: 6 + 7 + 7 blocks are more than 16.
	want := []string{"cpu+0-6", "cpu+0-7", "cpu+0-7", "cpu-100", "cpu-101", "cpu-102", "cpu-103"}
	if !slices.Equal(sink.events, want) {
		t.Errorf("events %v, want %v", sink.events, want)
	}
}

func TestAStoreIsShared(t *testing.T) {
	store := enginemodel.NewLower(kvblock.TierDisk, 6)
	store.PerBlock = 0.01
	one, other := &lowered{}, &lowered{}
	a, b := small(one), small(other)
	enginemodel.AddTiers(a, one, store)
	enginemodel.AddTiers(b, other, store)
	serve(a, 1, 4)
	s, loads, _ := serve(b, 1, 4)
	if s.Cached() != 16 || len(loads) != 1 {
		t.Errorf("another engine found %d tokens with %d loads, want 16 with 1", s.Cached(), len(loads))
	}
	serve(b, 50, 4)
	a.Plan(1)
	if want := []string{"disk+0-4", "disk-1", "disk-2"}; !slices.Equal(one.events, want) {
		t.Errorf("the engine that stored them got %v, want %v", one.events, want)
	}
	if want := []string{"disk+0-4"}; !slices.Equal(other.events, want) {
		t.Errorf("the other one got %v, want %v: what it loads is there already", other.events, want)
	}
	enginemodel.LeaveTiers(a)
	serve(b, 90, 6) // evicts blocks of an engine that has ended
	if s, _, _ := serve(b, 1, 4); s.Cached() != 0 {
		t.Errorf("%d tokens of evicted blocks were found", s.Cached())
	}
}

// A sequence that waits for its load keeps none behind it from being computed, and one that is aborted has no effect.
func TestOthersRunDuringALoad(t *testing.T) {
	sink := &lowered{}
	m := small(sink)
	host := enginemodel.NewLower(kvblock.TierCPU, 16)
	host.Start = 1
	enginemodel.AddTiers(m, sink, host)
	serve(m, 1, 3)
	serve(m, 100, 7)
	loading := &enginemodel.Sequence{Prompt: 13, Most: 1, Keys: named(1, 3)}
	next := &enginemodel.Sequence{Prompt: 9, Most: 1, Keys: named(50, 2)}
	m.Submit(loading)
	m.Submit(next)
	step := m.Plan(1)
	if len(step.Loads) != 1 || step.Steps != 1 || step.PromptTokens != 9 {
		t.Fatalf("planned %+v, want the load and a step for the other one", step)
	}
	m.Complete(1)
	if next.Live() || !loading.Live() {
		t.Errorf("the other one lives: %t, the loading one lives: %t", next.Live(), loading.Live())
	}
	if !m.Abort(loading) || m.Pool().Free() != 8 {
		t.Errorf("after the abort %d blocks are free, want 8", m.Pool().Free())
	}
	m.Arrive(loading)
	if step := m.Plan(1); step.Steps != 0 {
		t.Errorf("an aborted sequence is computed: %+v", step)
	}
}
