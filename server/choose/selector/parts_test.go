package selector_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestFilterNamesEachVeto(t *testing.T) {
	r := &replica.Replica{ID: "a", State: replica.StateReady, Models: []replica.Model{{ID: "m", MaxLen: 100}}}
	tests := []struct {
		name string
		f    selector.Filter
		want decision.Veto
	}{
		{"free", selector.Filter{}, decision.VetoNone},
		{"model", selector.Filter{Model: "m"}, decision.VetoNone},
		{"other model or adapter", selector.Filter{Model: "x"}, decision.VetoModel},
		{"too long", selector.Filter{Model: "m", PromptTokens: 101}, decision.VetoContext},
		{"excluded", selector.Filter{Excluded: []replica.ID{"b", "a"}}, decision.VetoExcluded},
		{"denied", selector.Filter{Denied: []replica.ID{"a"}}, decision.VetoDenied},
		{"allowed", selector.Filter{Allowed: []replica.ID{"a"}}, decision.VetoNone},
		{"not allowed", selector.Filter{Allowed: []replica.ID{"b"}}, decision.VetoNotAllowed},
		{"pinned elsewhere", selector.Filter{Pinned: "b"}, decision.VetoPinned},
	}
	for _, tt := range tests {
		if got := tt.f.Replica(r); got != tt.want {
			t.Errorf("%s: veto %q, want %q", tt.name, got, tt.want)
		}
	}
	for state, want := range map[replica.State]decision.Veto{
		replica.StateStarting: decision.VetoState, replica.StateDraining: decision.VetoDraining, replica.StateUnhealthy: decision.VetoState,
	} {
		if got := (&selector.Filter{}).Replica(&replica.Replica{ID: "a", State: state}); got != want {
			t.Errorf("%s: veto %q, want %q", state, got, want)
		}
	}
	f := selector.Filter{MinRank: 1, MaxRank: 2, Pinned: "a", PinnedRank: -1}
	for rank, want := range []decision.Veto{decision.VetoRank, decision.VetoNone, decision.VetoNone, decision.VetoRank} {
		if got := f.Rank(rank); got != want {
			t.Errorf("rank %d: veto %q, want %q", rank, got, want)
		}
	}
	f.PinnedRank = 2
	if got := f.Rank(1); got != decision.VetoPinned {
		t.Errorf("rank 1 when 2 is pinned: veto %q", got)
	}
}

func TestApplyRefusesWhatItDoesNotKnow(t *testing.T) {
	p, err := selector.Apply(selector.DefaultParams(), map[string]float64{"overlap_credit": 2, "temperature": 0.5})
	if err != nil || p.OverlapCredit != 2 || p.Temperature != 0.5 || p.CPUCredit != 0.75 {
		t.Errorf("Apply() = %+v, %v", p, err)
	}
	_, err = selector.Apply(selector.DefaultParams(), map[string]float64{"speed": 1, "cpu_credit": 1.5, "temperature": -1})
	for _, name := range []string{"speed", "cpu_credit", "temperature"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
}

func pool(n int) []*replica.Replica {
	var list []*replica.Replica
	for i := range n {
		list = append(list, &replica.Replica{ID: replica.ID(fmt.Sprintf("r%d", i)), Slots: []replica.Slot{replica.Slot(i)}})
	}
	return list
}

func TestRingKeepsSessionsWhereTheyAre(t *testing.T) {
	whole := selector.NewRing(selector.DefaultRingConfig(), pool(8))
	fewer := selector.NewRing(selector.DefaultRingConfig(), pool(7))
	owners := map[replica.Slot]int{}
	moved := 0
	for i := range 4000 {
		key := fmt.Sprintf("session-%d", i)
		a := whole.Walk(nil, key)
		if len(a) != 3 || a[0] == a[1] || a[1] == a[2] || a[0] == a[2] {
			t.Fatalf("Walk() = %v, want an owner and two distinct successors", a)
		}
		if again := whole.Walk(nil, key); !slices.Equal(a, again) {
			t.Fatalf("Walk() = %v, then %v", a, again)
		}
		owners[a[0]]++
		switch b := fewer.Walk(nil, key); {
		case a[0] == 7 && b[0] != a[1]:
			t.Fatalf("a session of the lost rank went to %d, its successor was %d", b[0], a[1])
		case a[0] != 7 && b[0] != a[0]:
			moved++
		}
	}
	if moved > 0 {
		t.Errorf("%d sessions of other ranks moved when one left", moved)
	}
	for slot, n := range owners {
		if n < 250 || n > 850 {
			t.Errorf("rank %d owns %d of 4000 sessions", slot, n)
		}
	}
	if got := selector.NewRing(selector.DefaultRingConfig(), nil).Walk(nil, "x"); len(got) != 0 {
		t.Errorf("an empty ring gave %v", got)
	}
}

func matches(tree *selector.Tree, text string) map[replica.Slot]int {
	got := map[replica.Slot]int{}
	tree.Match(text, func(s replica.Slot, n int) { got[s] = n })
	return got
}

// Insert, split, match, remove, eviction.
func TestTree(t *testing.T) {
	now := time.Unix(0, 0)
	tree := selector.NewTree(selector.DefaultTreeConfig())
	tree.Insert(0, "hello world", now)
	tree.Insert(1, "hello there", now)
	tree.Insert(2, "", now)
	tests := []struct {
		text string
		want map[replica.Slot]int
	}{
		{"hello world and more", map[replica.Slot]int{0: 11, 1: 6}},
		{"hello there", map[replica.Slot]int{0: 6, 1: 11}},
		{"hello t", map[replica.Slot]int{0: 6, 1: 7}},
		{"help", map[replica.Slot]int{0: 3, 1: 3}},
		{"nothing", map[replica.Slot]int{}},
		{"", map[replica.Slot]int{}},
	}
	for _, tt := range tests {
		if got := matches(tree, tt.text); !maps.Equal(got, tt.want) {
			t.Errorf("match of %q = %v, want %v", tt.text, got, tt.want)
		}
	}
	if a, b, c := tree.Size(0), tree.Size(1), tree.Size(2); a != 11 || b != 11 || c != 0 {
		t.Errorf("sizes %d, %d, %d, want 11, 11, 0", a, b, c)
	}
	tree.Insert(0, "hello world", now) // again: nothing grows
	if got := tree.Size(0); got != 11 {
		t.Errorf("size after a second insert = %d, want 11", got)
	}
	tree.Remove(0)
	if got := matches(tree, "hello world"); !maps.Equal(got, map[replica.Slot]int{1: 6}) {
		t.Errorf("match after the rank left = %v", got)
	}
}

// The text belongs to a request's body, which must not live as long as the tree.
func TestTheTreeKeepsNoMemoryOfItsCallers(t *testing.T) {
	tree := selector.NewTree(selector.DefaultTreeConfig())
	body := []byte("a prompt in the memory of its body")
	tree.Insert(1, unsafe.String(&body[0], len(body)), time.Unix(0, 0))
	clear(body)
	found := 0
	tree.Match("a prompt in the memory of its body", func(_ replica.Slot, chars int) { found = chars })
	if found != len(body) {
		t.Errorf("%d characters are known after the body is gone, want %d", found, len(body))
	}
}

func TestTreeEvictsTheOldest(t *testing.T) {
	cfg := selector.TreeConfig{Evict: true, EvictAbove: 100, EvictTo: 60, EvictEvery: time.Second}
	tree := selector.NewTree(cfg)
	for i := range 12 { // 10 characters each, all different from the first on
		tree.Insert(0, strings.Repeat(string(rune('a'+i)), 10), time.Unix(int64(i), 0))
		tree.Insert(1, "zz", time.Unix(int64(i), 0))
	}
	if got := tree.Size(0); got > 100 {
		t.Errorf("size %d exceeds the limit of 100", got)
	}
	if got := matches(tree, "aaaaaaaaaa"); len(got) != 0 {
		t.Errorf("the oldest text is still there: %v", got)
	}
	if got := matches(tree, "llllllllll"); got[0] != 10 {
		t.Errorf("the newest text is gone: %v", got)
	}
	if got := tree.Size(1); got != 2 {
		t.Errorf("another rank's text was evicted: size %d, want 2", got)
	}
}

// The tree against the simplest correct version: a list of texts per rank.
func TestTreeAgreesWithAList(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tree := selector.NewTree(selector.TreeConfig{EvictAbove: 1, EvictEvery: time.Second})
	texts := map[replica.Slot][]string{}
	word := func() string {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = byte('a' + r.IntN(2))
		}
		return string(b)
	}
	for step := range 4000 {
		slot := replica.Slot(r.IntN(4))
		switch r.IntN(20) {
		case 0:
			tree.Remove(slot)
			delete(texts, slot)
		default:
			w := word()
			tree.Insert(slot, w, time.Unix(int64(step), 0))
			texts[slot] = append(texts[slot], w)
		}
		probe := word()
		want := map[replica.Slot]int{}
		for slot, list := range texts {
			for _, have := range list {
				n := 0
				for n < min(len(have), len(probe)) && have[n] == probe[n] {
					n++
				}
				if n > want[slot] {
					want[slot] = n
				}
			}
		}
		if got := matches(tree, probe); !maps.Equal(got, want) {
			t.Fatalf("step %d: match of %q = %v, want %v", step, probe, got, want)
		}
	}
}
