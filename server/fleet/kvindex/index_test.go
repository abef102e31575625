package kvindex_test

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 4 // tokens per block in most tests

func newIndex(t testing.TB, ranks int) *kvindex.Index {
	t.Helper()
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	for slot := range replica.Slot(ranks) {
		if err := ix.AddRank(slot, kvindex.RankInfo{}); err != nil {
			t.Fatal(err)
		}
		ix.SetState(slot, kvblock.FeedExact)
	}
	return ix
}

// tokens returns n blocks of tokens that depend on seed.
func tokens(seed uint32, n int) []uint32 {
	list := make([]uint32, n*size)
	for i := range list {
		list[i] = seed<<16 + uint32(i)
	}
	return list
}

// names returns engine hashes for n blocks.
func names(seed uint64, n int) []kvblock.EngineHash {
	list := make([]kvblock.EngineHash, n)
	for i := range list {
		list[i] = kvblock.EngineHash(seed<<32 + uint64(i))
	}
	return list
}

func chain(tokens []uint32) []blockhash.Hash {
	return blockhash.Chain(nil, tokens, size, blockhash.Namespace{})
}

func stored(seed uint32, n int) *kvblock.Stored {
	return &kvblock.Stored{Hashes: names(uint64(seed), n), Tokens: tokens(seed, n), BlockSize: size}
}

func match(ix *kvindex.Index, hashes []blockhash.Hash) []kvindex.Overlap {
	list := ix.Match(nil, hashes)
	slices.SortFunc(list, func(a, b kvindex.Overlap) int { return int(a.Slot) - int(b.Slot) })
	return list
}

func expect(t *testing.T, ix *kvindex.Index, hashes []blockhash.Hash, want ...kvindex.Overlap) {
	t.Helper()
	if got := match(ix, hashes); !slices.Equal(got, want) {
		t.Errorf("Match() = %+v, want %+v", got, want)
	}
}

func TestMatchFindsEachRanksLead(t *testing.T) {
	ix := newIndex(t, 3)
	all := chain(tokens(1, 100))
	for slot, n := range []int{100, 37, 1} {
		ix.Store(replica.Slot(slot), stored(1, n))
	}
	expect(t, ix, all, kvindex.Overlap{Slot: 0, GPU: 100}, kvindex.Overlap{Slot: 1, GPU: 37}, kvindex.Overlap{Slot: 2, GPU: 1})
	expect(t, ix, all[:20], kvindex.Overlap{Slot: 0, GPU: 20}, kvindex.Overlap{Slot: 1, GPU: 20}, kvindex.Overlap{Slot: 2, GPU: 1})
	expect(t, ix, all[:1], kvindex.Overlap{Slot: 0, GPU: 1}, kvindex.Overlap{Slot: 1, GPU: 1}, kvindex.Overlap{Slot: 2, GPU: 1})
	expect(t, ix, chain(tokens(2, 10)))
	expect(t, ix, nil)
}

func TestStoredEventsContinueTheirParent(t *testing.T) {
	ix := newIndex(t, 1)
	all := tokens(1, 10)
	ev := stored(1, 4)
	ix.Store(0, ev)
	more := &kvblock.Stored{Hashes: names(9, 6), Parent: ev.Hashes[3], HasParent: true, Tokens: all[4*size:], BlockSize: size}
	ix.Store(0, more)
	expect(t, ix, chain(all), kvindex.Overlap{GPU: 10})
}

func TestUnknownParentsAreCountedAndNotMatched(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 4)
	ev.Parent, ev.HasParent = 77, true
	ix.Store(0, ev)
	expect(t, ix, chain(tokens(1, 4)))
	if s := ix.Stats().Ranks[0]; s.Blocks[0] != 4 || s.Unkeyed != 4 || s.Orphans != 4 {
		t.Errorf("stats = %+v, want 4 blocks, all of them orphans", s)
	}
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes})
	if s := ix.Stats(); s.Blocks != 0 || s.Ranks[0].Unkeyed != 0 {
		t.Errorf("after the removal %d blocks, %d without key, want none", s.Blocks, s.Ranks[0].Unkeyed)
	}
}

func TestCopiesAreCounted(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 3)
	for range 300 { // more than a byte counts
		ix.Store(0, ev)
	}
	for range 299 {
		ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[2:]})
	}
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 3})
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[2:]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 2})
}

func TestTiersContinueEachOther(t *testing.T) {
	ix := newIndex(t, 2)
	ev := stored(1, 20)
	all := chain(ev.Tokens)
	ix.Store(0, ev)
	for _, h := range ev.Hashes[:15] { // offloaded: named by hash only
		ix.Store(0, &kvblock.Stored{Hashes: []kvblock.EngineHash{h}, Tier: kvblock.TierCPU})
	}
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[10:]})
	disk := *ev
	disk.Tier = kvblock.TierDisk
	ix.Store(0, &disk)
	ix.Store(1, &disk)
	expect(t, ix, all, kvindex.Overlap{GPU: 10, CPU: 5, Disk: 5}, kvindex.Overlap{Slot: 1, Disk: 20})
	ix.Clear(0, kvblock.TierCPU, false)
	expect(t, ix, all, kvindex.Overlap{GPU: 10, Disk: 10}, kvindex.Overlap{Slot: 1, Disk: 20})
	ix.Clear(0, 0, true)
	expect(t, ix, all, kvindex.Overlap{Slot: 1, Disk: 20})
}

func TestPlaceholdersMayComeBeforeTheirBlocks(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 4)
	ix.Store(0, &kvblock.Stored{Hashes: ev.Hashes, Tier: kvblock.TierCPU})
	expect(t, ix, chain(ev.Tokens))
	ix.Store(0, ev)
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{CPU: 4})
}

func TestSaltsReachContinuations(t *testing.T) {
	ix := newIndex(t, 1)
	all := tokens(1, 8)
	ns := blockhash.Namespace{Adapter: "lora", Salt: "tenant"}
	root := &kvblock.Stored{Hashes: names(1, 4), Tokens: all[:4*size], BlockSize: size, Adapter: "lora", Salt: "tenant"}
	next := &kvblock.Stored{Hashes: names(2, 4), Parent: root.Hashes[3], HasParent: true, Tokens: all[4*size:], BlockSize: size, Adapter: "lora"}
	ix.Store(0, root)
	ix.Store(0, next)
	expect(t, ix, blockhash.Chain(nil, all, size, ns), kvindex.Overlap{GPU: 8})
	expect(t, ix, chain(all))
	ix.Remove(0, &kvblock.Removed{Hashes: next.Hashes})
	ix.Remove(0, &kvblock.Removed{Hashes: root.Hashes})
	expect(t, ix, blockhash.Chain(nil, all, size, ns))
}

func TestItemsAreInTheKey(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 3)
	ev.Items = [][]kvblock.Item{nil, {{ID: "cat", Offset: 1, HasOffset: true}}, {{ID: "cat", Offset: -3, HasOffset: true}, {ID: "dog", Offset: 2}}}
	ix.Store(0, ev)
	items := []blockhash.Item{{ID: "cat", Start: 5, End: 9}, {ID: "dog", Start: 10, End: 12}}
	expect(t, ix, blockhash.ChainItems(nil, ev.Tokens, size, blockhash.Namespace{}, items), kvindex.Overlap{GPU: 3})
	items[1].ID = "cow"
	expect(t, ix, blockhash.ChainItems(nil, ev.Tokens, size, blockhash.Namespace{}, items), kvindex.Overlap{GPU: 2})
}

func TestBeliefsEndWithFactsFirstTokensAndTime(t *testing.T) {
	now := time.Now()
	later := now.Add(time.Hour)
	ev := stored(1, 10)
	all := chain(ev.Tokens)
	head := stored(1, 4)
	for name, end := range map[string]func(*kvindex.Index, *kvindex.Belief){
		"end":   func(_ *kvindex.Index, b *kvindex.Belief) { b.End(); b.End() },
		"time":  func(ix *kvindex.Index, _ *kvindex.Belief) { ix.Expire(later) },
		"reset": func(ix *kvindex.Index, _ *kvindex.Belief) { ix.Reset(0); ix.Store(0, head) },
	} {
		ix := newIndex(t, 1)
		ix.Store(0, head)
		first, second := ix.Predict(0, all, later), ix.Predict(0, all[:6], later)
		ix.Expire(now)
		expect(t, ix, all, kvindex.Overlap{GPU: 10, Believed: 6})
		second.End()
		expect(t, ix, all, kvindex.Overlap{GPU: 10, Believed: 6})
		end(ix, first)
		if got, want := match(ix, all), []kvindex.Overlap{{GPU: 4}}; !slices.Equal(got, want) {
			t.Errorf("%s: Match() = %+v, want %+v", name, got, want)
		}
	}
	ix := newIndex(t, 1)
	ix.Predict(0, all, later)
	ix.Store(0, ev)
	expect(t, ix, all, kvindex.Overlap{GPU: 10})
	if s := ix.Stats(); s.Believed != 0 {
		t.Errorf("%d blocks believed after the event, want 0", s.Believed)
	}
}

func TestRanksWithoutEventsForgetTheOldest(t *testing.T) {
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	if err := ix.AddRank(3, kvindex.RankInfo{Capacity: 10}); err != nil {
		t.Fatal(err)
	}
	a, b := chain(tokens(1, 6)), chain(tokens(2, 6))
	ix.Routed(3, a)
	ix.Routed(3, b)
	expect(t, ix, a, kvindex.Overlap{Slot: 3, GPU: 4})
	expect(t, ix, b, kvindex.Overlap{Slot: 3, GPU: 6})
	ix.SetState(3, kvblock.FeedCold)
	expect(t, ix, b)
	if n := ix.Stats().Blocks; n != 0 {
		t.Errorf("%d blocks after events began, want 0", n)
	}
}
