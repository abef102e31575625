package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// guessModel is the simplest memory of what was routed: for each rank a list of blocks, the
// oldest first.
type guessModel struct {
	capacity []int
	held     [][]blockhash.Hash
}

func (m *guessModel) routed(r int, prompt []blockhash.Hash) {
	prompt = prompt[:min(len(prompt), m.capacity[r])]
	for _, h := range slices.Backward(prompt) {
		m.held[r] = append(slices.DeleteFunc(m.held[r], func(o blockhash.Hash) bool { return o == h }), h)
	}
	m.held[r] = m.held[r][max(0, len(m.held[r])-m.capacity[r]):]
}

func (m *guessModel) match(prompt []blockhash.Hash) (want []kvindex.Overlap) {
	for r, held := range m.held {
		n := 0
		for n < len(prompt) && slices.Contains(held, prompt[n]) {
			n++
		}
		if n > 0 {
			want = append(want, kvindex.Overlap{Slot: replica.Slot(r), GPU: uint32(n)})
		}
	}
	return want
}

// guessWorld drives an index and the model with the same prompts, which are words over a small
// alphabet: they share beginnings of any length.
type guessWorld struct {
	t     testing.TB
	ix    *kvindex.Index
	model guessModel
}

func newGuessWorld(t testing.TB, capacities ...int) *guessWorld {
	w := &guessWorld{t: t, ix: kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})}
	w.model = guessModel{capacity: capacities, held: make([][]blockhash.Hash, len(capacities))}
	for r := range capacities {
		w.add(r)
	}
	return w
}

func (w *guessWorld) add(r int) {
	w.t.Helper()
	if err := w.ix.AddRank(replica.Slot(r), kvindex.RankInfo{Capacity: w.model.capacity[r]}); err != nil {
		w.t.Fatal(err)
	}
}

// step does what three bytes and a word say.
func (w *guessWorld) step(rank, what byte, word []byte) {
	w.t.Helper()
	r := int(rank) % len(w.model.held)
	slot := replica.Slot(r)
	switch {
	case what < 250:
		prompt := wordBlocks(word)
		w.ix.Routed(slot, prompt)
		w.model.routed(r, prompt)
	case what < 252: // the rank is another one's
		w.ix.RemoveRank(slot)
		w.model.held[r] = nil
		w.add(r)
	case what < 254: // events begin and cease
		w.ix.SetState(slot, kvblock.FeedCold)
		w.ix.SetState(slot, kvblock.FeedNone)
		w.model.held[r] = nil
	default:
		w.ix.Reset(slot)
		w.model.held[r] = nil
	}
}

func (w *guessWorld) check(word []byte) {
	w.t.Helper()
	prompt := wordBlocks(word)
	want := w.model.match(prompt)
	if got := match(w.ix, prompt); !slices.Equal(got, want) {
		w.t.Fatalf("Match(%q) = %+v, want %+v", word, got, want)
	}
	for i, block := range w.ix.Path(prompt) {
		for _, o := range want {
			if held := slices.Contains(block.Tiers[kvblock.TierGPU], o.Slot); held != (i < int(o.GPU)) {
				w.t.Fatalf("block %d of %q: held by slot %d: %v, want the first %d", i, word, o.Slot, held, o.GPU)
			}
		}
	}
	total := 0
	stats := w.ix.Stats()
	for r, held := range w.model.held {
		total += len(held)
		if got := stats.Ranks[r].Guessed; got != len(held) {
			w.t.Fatalf("slot %d holds %d blocks, want %d", r, got, len(held))
		}
	}
	if stats.Blocks != int64(total) || stats.Held[kvblock.TierGPU] != int64(total) {
		w.t.Fatalf("%d blocks, %d held, want %d", stats.Blocks, stats.Held[kvblock.TierGPU], total)
	}
}

// finish removes all ranks and expects nothing to remain.
func (w *guessWorld) finish() {
	w.t.Helper()
	for r := range w.model.held {
		w.ix.RemoveRank(replica.Slot(r))
	}
	s := w.ix.Stats()
	if s.Blocks != 0 || s.Held[kvblock.TierGPU] != 0 || s.Sets != 0 || w.ix.GuessBytes() != 0 {
		w.t.Fatalf("after all ranks are gone %+v remains, with %d bytes of extents", s, w.ix.GuessBytes())
	}
}

// wordBlocks makes a chain: each block's hash names all letters up to it.
func wordBlocks(word []byte) []blockhash.Hash {
	var chain []blockhash.Hash
	at := blockhash.Hash(1)
	for _, letter := range word {
		at = blockhash.Next(at, uint64(letter%3))
		chain = append(chain, at)
	}
	return chain
}

// randomWord begins as one of the words before it, mostly.
func randomWord(dice *rand.Rand, words [][]byte) []byte {
	var word []byte
	if len(words) > 0 && dice.IntN(8) > 0 {
		from := words[dice.IntN(len(words))]
		word = slices.Clone(from[:dice.IntN(len(from)+1)])
	}
	for range 1 + int(dice.ExpFloat64()*8) {
		word = append(word, byte(dice.IntN(3)))
	}
	return word
}

func TestGuessesEqualTheSimplestLRU(t *testing.T) {
	for seed := range uint64(alone(40)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 18))
			var capacities []int
			for range 1 + dice.IntN(70) {
				capacities = append(capacities, 1+int(dice.ExpFloat64()*60))
			}
			w := newGuessWorld(t, capacities...)
			var words [][]byte
			for range 400 {
				word := randomWord(dice, words)
				if words = append(words, word); len(words) > 30 {
					words = words[1:]
				}
				w.step(byte(dice.IntN(256)), byte(dice.IntN(256)), word)
				w.check(words[dice.IntN(len(words))])
			}
			w.finish()
		})
	}
}

func FuzzGuesses(f *testing.F) {
	f.Add([]byte("\x00\x00\x05aaabb\x01\x00\x03aaa\x02\x00\x06aaabbb\x00\xff\x01a"))
	f.Add([]byte("\x00\x00\x09abcabcabc\x01\x00\x05abcab\x00\x00\x09cccaaabbb\x00\x00\x04abcc"))
	f.Fuzz(func(t *testing.T, in []byte) {
		w := newGuessWorld(t, 9, 4, 1, 30)
		for n := 0; len(in) >= 3 && n < 200; n++ {
			length := min(int(in[2]%32), len(in)-3)
			word := in[3 : 3+length]
			w.step(in[0], in[1], word)
			w.check(word)
			in = in[3+length:]
		}
		w.finish()
	})
}

// TestGuessesOfHashesThatAreNoChain: what such hashes match means nothing, but the numbers stay true.
func TestGuessesOfHashesThatAreNoChain(t *testing.T) {
	for seed := range uint64(40) {
		dice := rand.New(rand.NewPCG(seed, 19))
		w := newGuessWorld(t, 20, 7, 50)
		for range 500 {
			hashes := make([]blockhash.Hash, 1+dice.IntN(12))
			for i := range hashes {
				hashes[i] = blockhash.Hash(dice.IntN(6))
			}
			slot := replica.Slot(dice.IntN(3))
			w.ix.Routed(slot, hashes)
			w.ix.Match(nil, hashes)
			s := w.ix.Stats()
			total := 0
			for r, rs := range s.Ranks {
				if total += rs.Guessed; rs.Guessed < 0 || rs.Guessed > w.model.capacity[r] {
					t.Fatalf("slot %d holds %d blocks, want 0 to %d", r, rs.Guessed, w.model.capacity[r])
				}
			}
			if s.Blocks != int64(total) {
				t.Fatalf("%d blocks, want %d", s.Blocks, total)
			}
		}
		w.finish()
	}
}

// TestGuessesAreBounded: prompts of any length leave memory for the blocks that ranks have room for.
func TestGuessesAreBounded(t *testing.T) {
	const capacity, perBlock = 2000, 200
	for name, length := range map[string]int{"one block each": 1, "ten": 10, "longer than the cache": 3000} {
		w := newGuessWorld(t, capacity, capacity)
		dice := rand.New(rand.NewPCG(4, 4))
		for range 40_000 / length {
			prompt := make([]blockhash.Hash, length)
			for i := range prompt {
				prompt[i] = blockhash.Hash(dice.Uint64())
			}
			w.ix.Routed(replica.Slot(dice.IntN(2)), prompt)
			w.ix.Routed(replica.Slot(dice.IntN(2)), prompt[:1+dice.IntN(length)])
		}
		if s := w.ix.Stats(); s.Blocks > 2*capacity || s.Bytes > 2*capacity*perBlock {
			t.Errorf("%s: %d blocks in %d bytes, want at most %d in %d", name, s.Blocks, s.Bytes, 2*capacity, 2*capacity*perBlock)
		}
	}
}

// TestABeginningDoesNotKeepItsPrompt: of long prompts whose first blocks alone stay in use, these stay in memory.
func TestABeginningDoesNotKeepItsPrompt(t *testing.T) {
	const capacity = 2000
	w := newGuessWorld(t, capacity)
	dice := rand.New(rand.NewPCG(6, 6))
	var beginnings [][]blockhash.Hash
	for range 300 {
		prompt := make([]blockhash.Hash, capacity/2)
		for i := range prompt {
			prompt[i] = blockhash.Hash(dice.Uint64())
		}
		w.ix.Routed(0, prompt)
		beginnings = append(beginnings, prompt[:1])
		for _, b := range beginnings {
			w.ix.Routed(0, b)
		}
	}
	if got, want := w.ix.GuessBytes(), int64(4*8*capacity); got > want {
		t.Errorf("%d bytes for %d blocks, want at most %d", got, capacity, want)
	}
}

// TestGuessesWhileRouting: a lookup never sees less than what is always held, nor another's blocks.
func TestGuessesWhileRouting(t *testing.T) {
	const ranks, always, length = 8, 40, 100
	w := newGuessWorld(t, 4*length, 4*length, 4*length, 4*length, 4*length, 4*length, 4*length, 4*length)
	root := chain(tokens(1, length))
	for slot := range replica.Slot(ranks) {
		w.ix.Routed(slot, root[:always])
	}
	stop := make(chan struct{})
	failed := make(chan string, 2)
	for range 2 {
		go func() {
			failed <- func() string {
				for {
					select {
					case <-stop:
						return ""
					default:
					}
					got := w.ix.Match(nil, root)
					if len(got) != ranks {
						return fmt.Sprintf("%d ranks hold the beginning, want %d", len(got), ranks)
					}
					for _, o := range got {
						if o.GPU < always {
							return fmt.Sprintf("slot %d holds %d blocks, want at least %d", o.Slot, o.GPU, always)
						}
					}
				}
			}()
		}()
	}
	dice := rand.New(rand.NewPCG(5, 5))
	for i := range 3000 {
		prompt := slices.Clone(root[:always+dice.IntN(length-always)])
		for range dice.IntN(length) {
			prompt = append(prompt, blockhash.Hash(dice.Uint64()))
		}
		w.ix.Routed(replica.Slot(i%ranks), prompt)
	}
	close(stop)
	for range 2 {
		if what := <-failed; what != "" {
			t.Error(what)
		}
	}
	w.finish()
}

func TestMatchOfGuessesDoesNotAllocate(t *testing.T) {
	if underRace {
		t.Skip("the race detector makes pools forget at random")
	}
	w := newGuessWorld(t, 500, 500, 500)
	all := chain(tokens(1, 100))
	for slot := range replica.Slot(3) {
		w.ix.Routed(slot, all[:100-10*int(slot)])
	}
	room := make([]kvindex.Overlap, 0, 3)
	if n := testing.AllocsPerRun(100, func() { w.ix.Match(room, all) }); n != 0 {
		t.Errorf("Match allocates %v times, want 0", n)
	}
}
