package kvindex_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// hybrid stores some blocks of a prompt in a group whose blocks span stride chain blocks. Masked
// blocks are left out, so that hashes and tokens do not fit each other, as vLLM sends them.
func hybrid(ix *kvindex.Index, ev *kvblock.Stored, group int, kind kvblock.Kind, window, stride int, held []bool) {
	part := kvblock.Stored{
		Group: group, Kind: kind, Window: window, BlockSize: size * stride, Tokens: ev.Tokens,
	}
	for i, h := range held {
		if h {
			part.Hashes = append(part.Hashes, ev.Hashes[(i+1)*stride-1])
		}
	}
	if len(part.Hashes) == 0 {
		return
	}
	// The group's block size is known from its first whole event.
	whole := part
	whole.Hashes, whole.Tokens = []kvblock.EngineHash{1 << 60}, make([]uint32, size*stride)
	ix.Store(0, &whole)
	ix.Store(0, &part)
}

// longest is the definition: the longest end that every group allows.
func longest(lead, window int, windows []bool, stride int, states []bool) int {
	for end := lead; end > 0; end-- {
		ok := end%stride == 0 && states[end/stride-1]
		need := (window - 1 + size - 1) / size
		for i := max(0, end-need); i < end; i++ {
			ok = ok && windows[i]
		}
		if ok {
			return end
		}
	}
	return 0
}

func TestLimitingGroupsCutTheMatch(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 5))
	cut := 0
	for range 400 {
		n := 2 + dice.IntN(60)
		window, stride := 2+dice.IntN(40), 1+dice.IntN(3)
		windows, states := make([]bool, n), make([]bool, n/stride)
		for i := range windows {
			windows[i] = dice.IntN(10) > 0
		}
		for i := range states {
			states[i] = dice.IntN(3) > 0
		}
		if !slices.Contains(windows, true) || !slices.Contains(states, true) {
			continue
		}
		ix := newIndex(t, 1)
		ev := stored(1, n)
		ev.Kind = kvblock.KindFull
		if dice.IntN(2) == 0 { // the limiting groups may be told first
			hybrid(ix, ev, 1, kvblock.KindWindow, window, 1, windows)
			hybrid(ix, ev, 2, kvblock.KindMamba, 0, stride, states)
			ix.Store(0, ev)
		} else {
			ix.Store(0, ev)
			hybrid(ix, ev, 1, kvblock.KindWindow, window, 1, windows)
			hybrid(ix, ev, 2, kvblock.KindMamba, 0, stride, states)
		}
		lead := 1 + dice.IntN(n)
		got := 0
		for _, o := range ix.Match(nil, chain(ev.Tokens)[:lead]) {
			got = int(o.GPU)
		}
		want := longest(lead, window, windows, stride, states)
		if got != want {
			t.Fatalf("lead %d, window %d, stride %d: %d blocks usable, want %d\nwindow group %v\nstates %v", lead, window, stride, got, want, windows, states)
		}
		if want < lead {
			cut++
		}
		ix.Clear(0, kvblock.TierGPU, false)
		expect(t, ix, chain(ev.Tokens))
	}
	if cut < 50 {
		t.Errorf("only %d matches were cut: the test shows little", cut)
	}
}

func TestBlocksThatCannotBeKeyedAreCountedExactly(t *testing.T) {
	ev := func(change func(*kvblock.Stored)) *kvblock.Stored {
		e := stored(1, 3)
		change(e)
		return e
	}
	for name, c := range map[string]struct {
		ev    *kvblock.Stored
		total func(kvindex.Totals) int64
	}{
		"prompt embeddings": {ev(func(e *kvblock.Stored) { e.Ambiguous = true }), func(t kvindex.Totals) int64 { return t.Ambiguous }},
		"numbered adapter":  {ev(func(e *kvblock.Stored) { e.AdapterID = 3 }), func(t kvindex.Totals) int64 { return t.Ambiguous }},
		"masked tokens":     {ev(func(e *kvblock.Stored) { e.Tokens = append(e.Tokens, 1, 2, 3, 4) }), func(t kvindex.Totals) int64 { return t.Misshapen }},
		"lost parent":       {ev(func(e *kvblock.Stored) { e.Parent, e.HasParent = 5, true }), func(t kvindex.Totals) int64 { return t.Orphans }},
	} {
		ix := newIndex(t, 1)
		ix.Store(0, c.ev)
		expect(t, ix, chain(stored(1, 3).Tokens))
		s := ix.Stats()
		if s.Ranks[0].Blocks[0] != 3 || s.Ranks[0].Unkeyed != 3 || c.total(s.Total) != 3 {
			t.Errorf("%s: stats %+v, want three blocks without keys, for that reason", name, s.Ranks[0])
		}
		// Children of such blocks cannot be keyed either.
		child := &kvblock.Stored{Hashes: names(8, 1), Parent: c.ev.Hashes[2], HasParent: true, Tokens: tokens(9, 1), BlockSize: size}
		ix.Store(0, child)
		if s := ix.Stats().Ranks[0]; s.Unkeyed != 4 {
			t.Errorf("%s: %d blocks without keys after a child, want 4", name, s.Unkeyed)
		}
		ix.Remove(0, &kvblock.Removed{Hashes: append(child.Hashes, c.ev.Hashes...)})
		if s := ix.Stats(); s.Blocks != 0 || s.Ranks[0].Unkeyed != 0 || s.Total.UnknownRemoved != 0 {
			t.Errorf("%s: %d blocks, %d without keys after all were removed, want none", name, s.Blocks, s.Ranks[0].Unkeyed)
		}
	}
}

func TestPartialBlocksAreCountedAndDoNotChangeTheBlockSize(t *testing.T) {
	part := &kvblock.Stored{Hashes: names(7, 1), Tokens: []uint32{1, 2}, BlockSize: 2}
	for name, order := range map[string][]*kvblock.Stored{
		"after":  {stored(1, 3), part},
		"before": {part, stored(1, 3)},
	} {
		ix := newIndex(t, 1)
		for _, ev := range order {
			ix.Store(0, ev)
		}
		expect(t, ix, chain(tokens(1, 3)), kvindex.Overlap{GPU: 3})
		if s := ix.Stats().Ranks[0]; s.BlockSize != size || s.Blocks[0] != 4 {
			t.Errorf("%s: block size %d, %d blocks, want %d and 4", name, s.BlockSize, s.Blocks[0], size)
		}
	}
}

// TestPartialBlocksChangeNothingElse strews partial blocks, as vLLM announces the tail of a prompt
// (one unit's tokens, behind a parent that is announced only where the tail is one unit long), among
// whole ones: learned size and matches must be those of the whole ones alone.
func TestPartialBlocksChangeNothingElse(t *testing.T) {
	for seed := range uint64(40) {
		dice := rand.New(rand.NewPCG(seed, 41))
		info := kvindex.RankInfo{}
		reported := seed%2 == 0
		if reported {
			info.BlockSize = size
		}
		var with, without *kvindex.Index
		for _, ix := range []**kvindex.Index{&with, &without} {
			*ix = newIndex(t, 0)
			if err := (*ix).AddRank(0, info); err != nil {
				t.Fatal(err)
			}
			(*ix).SetState(0, kvblock.FeedExact)
		}
		var tails []kvblock.EngineHash
		for i := range uint32(20) {
			ev := stored(1+i, 1+dice.IntN(6))
			if i == 0 && !reported {
				ev = stored(1, 2) // otherwise the first size may be a partial block's
			} else if dice.IntN(3) > 0 {
				tail := &kvblock.Stored{Hashes: names(uint64(500+i), 1), Tokens: tokens(1+i, 8)[:size/2], BlockSize: size / 2}
				if dice.IntN(3) > 0 {
					tail.HasParent, tail.Parent = true, kvblock.EngineHash(dice.Uint64())
					if dice.IntN(2) == 0 {
						tail.Parent = ev.Hashes[len(ev.Hashes)-1]
					}
				}
				tail.Tier = kvblock.Tier(dice.IntN(2))
				with.Store(0, tail)
				if tail.Tier == kvblock.TierGPU {
					tails = append(tails, tail.Hashes...)
				}
				if got := with.BlockSize(0); got != size {
					t.Fatalf("seed %d: block size %d after a partial block, want %d", seed, got, size)
				}
			}
			with.Store(0, ev)
			without.Store(0, ev)
		}
		for i := range uint32(20) {
			all := chain(tokens(1+i, 8))
			expect(t, with, all, match(without, all)...)
		}
		with.Remove(0, &kvblock.Removed{Hashes: tails})
		if got, want := with.Stats().Ranks[0].Blocks[0], without.Stats().Ranks[0].Blocks[0]; got != want || with.BlockSize(0) != size {
			t.Fatalf("seed %d: %d blocks of size %d after the partial ones went, want %d of size %d", seed, got, with.BlockSize(0), want, size)
		}
	}
}

func TestASmallerSizeOfSeveralBlocksIsNoPartialBlock(t *testing.T) {
	ix := newIndex(t, 1)
	ix.Store(0, &kvblock.Stored{Hashes: names(2, 2), Tokens: tokens(2, 4), BlockSize: 2 * size})
	ix.Store(0, stored(1, 5))
	expect(t, ix, chain(tokens(1, 5)), kvindex.Overlap{GPU: 5})
	if got := ix.BlockSize(0); got != size {
		t.Errorf("block size %d, want %d", got, size)
	}
}

func TestRanksOfDifferentBlockSizesMatchTheirOwnHashes(t *testing.T) {
	ix := newIndex(t, 3)
	ev := stored(1, 8)
	coarse := &kvblock.Stored{Hashes: names(2, 4), Tokens: ev.Tokens, BlockSize: 2 * size}
	ix.Store(0, ev)
	ix.Store(1, coarse)
	if err := ix.AddRank(7, kvindex.RankInfo{BlockSize: 128}); err != nil {
		t.Fatal(err)
	}
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 8})
	expect(t, ix, blockhash.Chain(nil, ev.Tokens, 2*size, blockhash.Namespace{}), kvindex.Overlap{Slot: 1, GPU: 4})
	if got, want := ix.BlockSizes(), []int{size, 2 * size, 128}; !slices.Equal(got, want) {
		t.Errorf("BlockSizes() = %v, want %v", got, want)
	}
	if got := ix.BlockSize(1); got != 2*size {
		t.Errorf("BlockSize(1) = %d, want %d", got, 2*size)
	}
}

func TestChunksOfALowerTierCountWhole(t *testing.T) {
	ix := newIndex(t, 2)
	ev := stored(1, 10)
	ix.Store(0, ev)
	chunks := &kvblock.Stored{Tier: kvblock.TierCPU, Tokens: ev.Tokens, BlockSize: 2 * size}
	for i := 1; i < 10; i += 2 { // a chunk is named by its last block
		chunks.Hashes = append(chunks.Hashes, ev.Hashes[i])
	}
	ix.Store(0, chunks)
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[5:]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 5, CPU: 5})
	expect(t, ix, chain(ev.Tokens)[:9], kvindex.Overlap{GPU: 5, CPU: 3})
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[:5]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{CPU: 10})
}

func TestRemoteBlocksAreInTheLowestTier(t *testing.T) {
	ix := newIndex(t, 2)
	for _, tier := range []kvblock.Tier{kvblock.TierGPU, kvblock.TierCPU, kvblock.TierDisk} {
		ev := stored(1, 4)
		ev.Remote, ev.Tier = true, tier
		ix.Store(0, ev)
		expect(t, ix, chain(ev.Tokens), kvindex.Overlap{Disk: 4})
		ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes, Remote: true, Tier: tier})
		expect(t, ix, chain(ev.Tokens))
	}
	if s := ix.Stats(); s.Blocks != 0 || s.Total.Remote != 24 {
		t.Errorf("%d blocks, %d remote, want 0 and 24", s.Blocks, s.Total.Remote)
	}
}

func TestEvictedBlocksThatHostMemoryHoldsAreLoadable(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 10)
	ix.Store(0, ev)
	ix.Store(0, &kvblock.Stored{Hashes: ev.Hashes, Tier: kvblock.TierCPU}) // as vLLM's offloading announces them
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 10})
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[6:]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 6, CPU: 4})
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[:6]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{CPU: 10})
	ix.Remove(0, &kvblock.Removed{Hashes: ev.Hashes[8:], Tier: kvblock.TierCPU})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{CPU: 8})
	ix.Store(0, ev)
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 10})
}

// What one rank of a store has announced, the others load: as far as it continues their own blocks, and from the beginning where they hold nothing.
func TestRanksShareTheirStore(t *testing.T) {
	ix := newIndex(t, 5)
	for slot := range replica.Slot(4) {
		ix.SetStore(slot, "a")
	}
	ix.SetStore(3, "b")
	ev := stored(1, 10)
	first := *ev
	first.Hashes, first.Tokens = ev.Hashes[:6], ev.Tokens[:6*ev.BlockSize]
	ix.Store(0, &first)
	ix.Store(0, &kvblock.Stored{Hashes: first.Hashes, Tier: kvblock.TierCPU, Remote: true})
	ix.Store(1, ev)
	ix.Store(1, &kvblock.Stored{Hashes: ev.Hashes[4:], Tier: kvblock.TierCPU, Remote: true})
	ix.Store(4, ev)
	ix.Store(4, &kvblock.Stored{Hashes: ev.Hashes, Tier: kvblock.TierCPU, Remote: true})
	ix.Remove(1, &kvblock.Removed{Hashes: ev.Hashes[9:]})
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{Slot: 0, GPU: 6, Disk: 4}, kvindex.Overlap{Slot: 1, GPU: 9, Disk: 1}, kvindex.Overlap{Slot: 2, Disk: 10}, kvindex.Overlap{Slot: 4, GPU: 10})
	ix.Remove(1, &kvblock.Removed{Hashes: ev.Hashes[4:], Tier: kvblock.TierCPU, Remote: true}) // 4 and 5 are the other one's too
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{Slot: 0, GPU: 6}, kvindex.Overlap{Slot: 1, GPU: 9}, kvindex.Overlap{Slot: 2, Disk: 6}, kvindex.Overlap{Slot: 4, GPU: 10})
	ix.SetStore(2, "")
	ix.Reset(1)
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{Slot: 0, GPU: 6}, kvindex.Overlap{Slot: 1, Disk: 6}, kvindex.Overlap{Slot: 4, GPU: 10})
	ix.RemoveRank(0)
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{Slot: 4, GPU: 10})
}

// Random ranks, each with the beginnings of a prompt of random lengths in its tiers, some of them in stores that they share.
func TestTiersAgreeWithAList(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	for round := range 200 {
		ranks := 1 + dice.IntN(70)
		ix := newIndex(t, ranks)
		ev := stored(uint32(round+1), 40)
		var lengths [kvblock.Tiers][]int
		names, shared := make([]string, ranks), map[string]int{}
		for slot := range ranks {
			names[slot] = []string{"", "a", "b"}[dice.IntN(3)]
			ix.SetStore(replica.Slot(slot), names[slot])
			ix.Store(replica.Slot(slot), ev) // names the blocks
			for tier := range kvblock.Tier(kvblock.Tiers) {
				n := max(0, dice.IntN(60)-20)
				lengths[tier] = append(lengths[tier], n)
				if tier == kvblock.TierGPU {
					continue
				}
				ix.Store(replica.Slot(slot), &kvblock.Stored{Hashes: ev.Hashes[:n], Tier: tier, Remote: tier == kvblock.TierDisk && names[slot] != ""})
			}
			if n := lengths[kvblock.TierGPU][slot]; n < 40 {
				ix.Remove(replica.Slot(slot), &kvblock.Removed{Hashes: ev.Hashes[n:]})
			}
			shared[names[slot]] = max(shared[names[slot]], lengths[kvblock.TierDisk][slot])
		}
		var want []kvindex.Overlap
		for slot := range ranks {
			gpu, host, store := lengths[0][slot], lengths[1][slot], lengths[2][slot]
			if names[slot] != "" {
				store = shared[names[slot]]
			}
			o := kvindex.Overlap{Slot: replica.Slot(slot), GPU: uint32(gpu), CPU: uint32(max(0, host-gpu)), Disk: uint32(max(0, store-max(gpu, host)))}
			if o.GPU+o.CPU+o.Disk > 0 {
				want = append(want, o)
			}
		}
		if got := match(ix, chain(ev.Tokens)); !slices.Equal(got, want) {
			t.Fatalf("round %d: got %+v\nwant %+v", round, got, want)
		}
	}
}

func TestUnknownSlotsAreCountedAndHarmless(t *testing.T) {
	ix := newIndex(t, 1)
	ev := stored(1, 4)
	ix.Store(5, ev)
	ix.Remove(5, &kvblock.Removed{Hashes: ev.Hashes})
	ix.Reset(5)
	ix.RemoveRank(5)
	ix.Predict(5, chain(ev.Tokens), noDeadline).End()
	if s := ix.Stats(); s.Unknown != 4 {
		t.Errorf("%d calls for unknown slots, want 4", s.Unknown)
	}
	if err := ix.AddRank(0, kvindex.RankInfo{}); err == nil {
		t.Error("a slot was added twice")
	}
	if err := ix.AddRank(replica.Slot(kvindex.DefaultConfig().MaxRanks), kvindex.RankInfo{}); err == nil {
		t.Error("a slot above max_ranks was added")
	}
}

func TestTheBudgetIsKeptAndShown(t *testing.T) {
	config := kvindex.DefaultConfig()
	config.MaxBytes = 4 << 20
	budget := int64(config.MaxBytes) / kvindex.BlockCost
	ix := kvindex.New(config, kvindex.Params{})
	for slot := range replica.Slot(2) {
		if err := ix.AddRank(slot, kvindex.RankInfo{}); err != nil {
			t.Fatal(err)
		}
		ix.SetState(slot, kvblock.FeedExact)
	}
	run := func(slot replica.Slot, from, to uint32) {
		for seed := from; seed < to; seed++ {
			ix.Store(slot, stored(seed, 100))
		}
	}
	run(0, 1, 2000) // 200,000 blocks: more than the budget
	s := ix.Stats()
	if s.Blocks > budget*9/10 || s.Blocks < budget*8/10 || !s.Cut {
		t.Errorf("%d blocks with a budget of %d, cut %v; want it used but for the last tenth, and shown", s.Blocks, budget, s.Cut)
	}
	if s.Bytes > int64(config.MaxBytes) {
		t.Errorf("%d bytes, want at most %d", s.Bytes, config.MaxBytes)
	}
	run(1, 3000, 4000) // a late rank has a share too
	s = ix.Stats()
	if s.Ranks[1].Blocks[0] < int(budget/11) || s.Blocks > budget || s.Bytes > int64(config.MaxBytes) {
		t.Errorf("the late rank has %d blocks, all have %d of %d in %d bytes", s.Ranks[1].Blocks[0], s.Blocks, budget, s.Bytes)
	}
	expect(t, ix, chain(tokens(1, 100)), kvindex.Overlap{GPU: 100})
	for seed := uint32(1); seed < 300; seed++ { // the engine evicts
		ix.Remove(0, &kvblock.Removed{Hashes: stored(seed, 100).Hashes})
	}
	run(0, 5000, 5001)
	expect(t, ix, chain(tokens(5000, 100)), kvindex.Overlap{GPU: 100})
}

// TestRanksWithoutEventsAreLRU compares with the simplest LRU.
func TestRanksWithoutEventsAreLRU(t *testing.T) {
	const capacity = 50
	dice := rand.New(rand.NewPCG(3, 3))
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	if err := ix.AddRank(0, kvindex.RankInfo{Capacity: capacity}); err != nil {
		t.Fatal(err)
	}
	var prompts [][]blockhash.Hash
	for i := range 12 {
		prompts = append(prompts, chain(tokens(uint32(i/3), 1+dice.IntN(30))))
	}
	var held []blockhash.Hash // oldest first
	for range 2000 {
		p := prompts[dice.IntN(len(prompts))]
		ix.Routed(0, p)
		for _, h := range slices.Backward(p) {
			held = append(slices.DeleteFunc(held, func(o blockhash.Hash) bool { return o == h }), h)
		}
		held = held[max(0, len(held)-capacity):]
		q := prompts[dice.IntN(len(prompts))]
		want := 0
		for want < len(q) && slices.Contains(held, q[want]) {
			want++
		}
		got := 0
		for _, o := range ix.Match(nil, q) {
			got = int(o.GPU)
		}
		if got != want {
			t.Fatalf("%d blocks, want %d", got, want)
		}
	}
	if s := ix.Stats(); s.Blocks != capacity || s.Ranks[0].Guessed != capacity {
		t.Errorf("%d blocks, %d guessed, want %d", s.Blocks, s.Ranks[0].Guessed, capacity)
	}
}

// TestLargerBlockSizeDoesNotEmptyARank: one event of another block size leaves what is known findable;
// only when all events have it is it the rank's own.
func TestLargerBlockSizeDoesNotEmptyARank(t *testing.T) {
	for _, hashes := range []int{1, 2} {
		ix := newIndex(t, 1)
		base := stored(1, 8)
		ix.Store(0, base)
		odd := stored(100, 4*hashes)
		odd.BlockSize, odd.Hashes = 4*size, odd.Hashes[:hashes]
		ix.Store(0, odd)
		expect(t, ix, chain(base.Tokens), kvindex.Overlap{Slot: 0, GPU: 8})
		if got := ix.BlockSize(0); got != size {
			t.Errorf("block size %d, want %d", got, size)
		}
		if total := ix.Stats().Total; total.OddSize != int64(hashes) || total.Resized != 0 {
			t.Errorf("totals = %+v", total)
		}
		more := stored(200, 3)
		ix.Store(0, more) // and it goes on as before
		expect(t, ix, chain(more.Tokens), kvindex.Overlap{Slot: 0, GPU: 3})
		for i := range 40 {
			ev := stored(uint32(1000+100*i), 8)
			ev.BlockSize, ev.Hashes = 4*size, ev.Hashes[:2]
			ix.Store(0, ev)
		}
		if got := ix.BlockSize(0); got != 4*size {
			t.Errorf("block size %d after many events of %d", got, 4*size)
		}
		expect(t, ix, chain(base.Tokens))
	}
}

// TestLookaheadLimitsTheReach: an engine that speculates finds a block only when the tokens behind it
// are in the prompt too.
func TestLookaheadLimitsTheReach(t *testing.T) {
	ix := newIndex(t, 2)
	ev := stored(1, 4)
	ev.Lookahead = 3
	ix.Store(0, ev)
	for _, tt := range []struct {
		slot         replica.Slot
		tokens, want int
	}{{0, 2, 0}, {0, 64, 61}, {1, 64, 63}, {1, 0, 0}, {9, 64, 63}} {
		if got := ix.Reach(tt.slot, tt.tokens); got != tt.want {
			t.Errorf("Reach(%d, %d) = %d, want %d", tt.slot, tt.tokens, got, tt.want)
		}
	}
	ix.Reset(0)
	if got := ix.Reach(0, 64); got != 63 {
		t.Errorf("after a reset: %d", got)
	}
}
