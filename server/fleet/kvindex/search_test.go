package kvindex_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// TestEveryEndIsFound gives many ranks leads of one long prompt, crowded or spread, and compares
// what a lookup of its beginnings says with the leads themselves.
func TestEveryEndIsFound(t *testing.T) {
	for seed := range uint64(24) {
		dice := rand.New(rand.NewPCG(seed, 31))
		ranks, length := 1+dice.IntN(90), 1+dice.IntN(900)
		if seed%4 == 0 {
			length = 1 + dice.IntN(12)
		}
		prompt := tokens(1, length)
		ix, leads := newIndex(t, ranks), make([]int, ranks)
		crowd := dice.IntN(length + 1)
		for r := range leads {
			switch leads[r] = dice.IntN(length + 1); dice.IntN(4) {
			case 0:
				leads[r] = crowd
			case 1: // neighbours
				leads[r] = min(crowd+dice.IntN(3), length)
			}
			ix.Store(replica.Slot(r), &kvblock.Stored{Hashes: names(1, leads[r]), Tokens: prompt[:leads[r]*size], BlockSize: size})
		}
		all := chain(prompt)
		for range 12 {
			asked := 1 + dice.IntN(length)
			var want []kvindex.Overlap
			for r, lead := range leads {
				if n := min(lead, asked); n > 0 {
					want = append(want, kvindex.Overlap{Slot: replica.Slot(r), GPU: uint32(n)})
				}
			}
			expect(t, ix, all[:asked], want...)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %d ranks, leads %v of %d", seed, ranks, leads, length)
		}
	}
}

// TestAHoleIsNotALead: a block may be missing before others that are held. What a lookup says then is
// bounded by what it can see: the first and the last counted block are held, the next one is not.
func TestAHoleIsNotALead(t *testing.T) {
	for seed := range uint64(24) {
		dice := rand.New(rand.NewPCG(seed, 32))
		ranks, length := 1+dice.IntN(20), 2+dice.IntN(300)
		prompt := tokens(1, length)
		all := chain(prompt)
		ix := newIndex(t, ranks)
		held := make([][]bool, ranks)
		for r := range held {
			lead := 1 + dice.IntN(length)
			held[r] = make([]bool, length+1)
			ix.Store(replica.Slot(r), &kvblock.Stored{Hashes: names(1, lead), Tokens: prompt[:lead*size], BlockSize: size})
			for i := range lead {
				if held[r][i] = dice.IntN(1+lead/2) > 0; !held[r][i] {
					ix.Remove(replica.Slot(r), &kvblock.Removed{Hashes: names(1, lead)[i : i+1]})
				}
			}
		}
		got := make([]int, ranks)
		for _, o := range match(ix, all) {
			got[o.Slot] = int(o.GPU)
		}
		for r, n := range got {
			switch h := held[r]; {
			case n == 0 && h[0], n > 0 && (!h[0] || !h[n-1] || h[n]):
				t.Errorf("seed %d, rank %d: a lead of %d in %v", seed, r, n, h)
			}
		}
	}
}
