package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// alone is how many steps a play on one goroutine has of n.
func alone(n int) int {
	if raceEnabled || testing.Short() {
		return n / 6
	}
	return n
}

// Ids for sets of ranks can run out. What the index says then may be too little and must not be too much: a rank that has removed a
// block is not among its holders. In the end nothing is left.
func TestTooManySetsCostHitsAndNothingElse(t *testing.T) {
	const ranks = 12
	for _, ids := range []int{1, 4, 16, 64} {
		t.Run(fmt.Sprint("events, ", ids), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(uint64(ids), 1))
			ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
			ix.LimitSets(ids)
			held := make([]map[int]bool, ranks) // by prompt
			for r := range held {
				held[r] = map[int]bool{}
				addExact(t, ix, replica.Slot(r))
			}
			prompt := func(n int) ([]uint32, []kvblock.EngineHash) {
				list := []uint32{uint32(n), 1, 2, 3, 4, 5, 6, 7}
				return list, []kvblock.EngineHash{kvblock.EngineHash(2*n + 1), kvblock.EngineHash(2*n + 2)}
			}
			for step := range alone(6000) {
				r, n := dice.IntN(ranks), dice.IntN(40)
				slot := replica.Slot(r)
				tokens, names := prompt(n)
				switch {
				case dice.IntN(200) == 0:
					ix.Reset(slot)
					ix.SetState(slot, kvblock.FeedExact)
					clear(held[r])
				case held[r][n]:
					ix.Remove(slot, &kvblock.Removed{Hashes: names})
					delete(held[r], n)
				default:
					ix.Store(slot, &kvblock.Stored{Hashes: names, Tokens: tokens, BlockSize: 4})
					held[r][n] = true
				}
				for i, block := range ix.Path(blockhash.Chain(nil, tokens, 4, blockhash.Namespace{})) {
					for _, slot := range block.Tiers[kvblock.TierGPU] {
						if !held[slot][n] {
							t.Fatalf("step %d: rank %d is a holder of block %d, which it has removed", step, slot, i)
						}
					}
				}
				if facts, _, _ := ix.Recount(); step%50 == 0 && facts[kvblock.TierGPU] != ix.Stats().Held[kvblock.TierGPU] {
					t.Fatalf("step %d: %d pairs are counted, the tables have %d", step, ix.Stats().Held[kvblock.TierGPU], facts[kvblock.TierGPU])
				}
			}
			empty(t, ix, ranks)
		})
		t.Run(fmt.Sprint("guesses, ", ids), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(uint64(ids), 2))
			w := newGuessWorld(t, 9, 20, 33, 50, 64, 5, 40, 28)
			w.ix.LimitSets(ids)
			var words [][]byte
			for step := range alone(4000) {
				word := randomWord(dice, words)
				words = append(words, word)
				w.step(byte(dice.IntN(8)), byte(dice.IntN(256)), word)
				// What could not be entered makes room for older blocks, so the model's ranks hold others.
				for r, capacity := range w.model.capacity {
					if n := w.ix.Stats().Ranks[r].Guessed; n < 0 || n > capacity {
						t.Fatalf("step %d: rank %d is taken to hold %d blocks of %d", step, r, n, capacity)
					}
				}
				if step%20 == 0 {
					_, pairs, _ := w.ix.Recount()
					if n := w.ix.Stats().Held[kvblock.TierGPU]; n != pairs || w.ix.Guessed() != pairs {
						t.Fatalf("step %d: %d pairs are counted, %d by rank, the extents have %d", step, n, w.ix.Guessed(), pairs)
					}
				}
			}
			w.finish()
		})
	}
}

func addExact(t *testing.T, ix *kvindex.Index, slot replica.Slot) {
	t.Helper()
	if err := ix.AddRank(slot, kvindex.RankInfo{BlockSize: 4}); err != nil {
		t.Fatal(err)
	}
	ix.SetState(slot, kvblock.FeedExact)
}

// empty removes the ranks and wants nothing to be left.
func empty(t *testing.T, ix *kvindex.Index, ranks int) {
	t.Helper()
	for r := range ranks {
		ix.RemoveRank(replica.Slot(r))
	}
	if s := ix.Stats(); s.Blocks != 0 || s.Held != [kvblock.Tiers]int64{} || s.Sets != 0 {
		t.Errorf("after all ranks are gone %+v is left", s)
	}
}

// Ids that were freed are used again.
func TestSetsComeBackAfterTheyRanOut(t *testing.T) {
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	ix.LimitSets(3)
	for r := range 8 {
		addExact(t, ix, replica.Slot(r))
	}
	shared := func(n int, slots ...replica.Slot) int {
		tokens, names := []uint32{uint32(n), 1, 2, 3}, []kvblock.EngineHash{kvblock.EngineHash(n)}
		for _, slot := range slots {
			ix.Store(slot, &kvblock.Stored{Hashes: names, Tokens: tokens, BlockSize: 4})
		}
		return len(ix.Path(blockhash.Chain(nil, tokens, 4, blockhash.Namespace{}))[0].Tiers[kvblock.TierGPU])
	}
	for round := range 50 {
		if n := shared(1000+round, 0, 1); n != 2 {
			t.Fatalf("round %d: %d holders, want 2", round, n)
		}
		for i := range 5 {
			shared(10*round+i, replica.Slot(2+i%3), replica.Slot(3+i), replica.Slot(i))
		}
		for r := range 8 {
			ix.Reset(replica.Slot(r))
			ix.SetState(replica.Slot(r), kvblock.FeedExact)
		}
	}
}
