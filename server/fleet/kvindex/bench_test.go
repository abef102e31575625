//go:build unix

package kvindex_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

var benchBlocks = flag.Int("blocks", 1_000_000, "blocks that the benchmarked index holds")

// churn is an index of 64 full ranks: each turn stores a prompt's blocks on one rank and
// removes as many of its oldest, one per event as vLLM does.
type churn struct {
	ix    *kvindex.Index
	turns int
	gone  kvblock.Removed
	ev    kvblock.Stored
}

const (
	churnRanks = 64
	churnRun   = 100
)

func newChurn(b *testing.B) *churn {
	c := &churn{ix: newIndex(b, churnRanks)}
	c.ev.BlockSize = 16
	c.ev.Tokens = make([]uint32, churnRun*16)
	c.ev.Hashes = make([]kvblock.EngineHash, churnRun)
	for c.turns < *benchBlocks/churnRun {
		c.store(c.turns)
	}
	return c
}

func (c *churn) tokens(turn int) {
	for i := range c.ev.Tokens {
		c.ev.Tokens[i] = uint32(turn*churnRun*16 + i)
	}
}

func (c *churn) name(turn, i int) kvblock.EngineHash {
	return kvblock.EngineHash(uint64(turn*churnRun+i+1) * 0x9FB21C651E98DF25)
}

func (c *churn) store(turn int) {
	c.tokens(turn)
	for i := range c.ev.Hashes {
		c.ev.Hashes[i] = c.name(turn, i)
	}
	c.ix.Store(replica.Slot(turn%churnRanks), &c.ev)
	c.turns = turn + 1
}

// remove sends the turn's removals, so many per event.
func (c *churn) remove(turn, perEvent int) {
	c.gone.Hashes = c.gone.Hashes[:0]
	for i := range churnRun {
		c.gone.Hashes = append(c.gone.Hashes, c.name(turn, i))
		if len(c.gone.Hashes) == perEvent || i == churnRun-1 {
			c.ix.Remove(replica.Slot(turn%churnRanks), &c.gone)
			c.gone.Hashes = c.gone.Hashes[:0]
		}
	}
}

// BenchmarkApply reports the cost of a stored and a removed block together. Feeds hand over a
// step's removals at once; one by one is how engines send them.
func BenchmarkApply(b *testing.B) {
	c := newChurn(b)
	held := c.turns
	for _, perEvent := range []int{1, churnRun} {
		b.Run(fmt.Sprintf("removals=%d", perEvent), func(b *testing.B) {
			b.ReportAllocs()
			from := usage()
			var gone, come []time.Duration
			for i := 0; i < b.N; i += churnRun {
				begin := time.Now()
				c.remove(c.turns-held, perEvent)
				mid := time.Now()
				c.store(c.turns)
				gone, come = append(gone, mid.Sub(begin)), append(come, time.Since(mid))
			}
			report(b, from, b.N)
			slices.Sort(gone)
			slices.Sort(come)
			b.ReportMetric(float64(gone[len(gone)/2])/churnRun, "p50-ns/removed")
			b.ReportMetric(float64(come[len(come)/2])/churnRun, "p50-ns/stored")
			b.ReportMetric(float64(come[len(come)/10])/churnRun, "p10-ns/stored")
		})
	}
}

func BenchmarkMatch(b *testing.B) {
	c := newChurn(b)
	const prompts = 4000
	dice := rand.New(rand.NewPCG(1, 2))
	list := make([][]blockhash.Hash, prompts)
	for i := range list {
		c.tokens(dice.IntN(c.turns))
		list[i] = blockhash.Chain(nil, c.ev.Tokens[:16*(1+dice.IntN(churnRun))], 16, blockhash.Namespace{})
		for range 625 {
			list[i] = append(list[i], blockhash.Hash(dice.Uint64()))
		}
	}
	timeMatches(b, c.ix, list)
}

// BenchmarkMatchEnds asks for prompts of 752 blocks of which 64 ranks hold beginnings that end at
// so many places, among as many blocks as -blocks says.
func BenchmarkMatchEnds(b *testing.B) {
	const length, prompts = 752, 400
	for _, ends := range []int{1, 2, 4, 8, 16} {
		b.Run(fmt.Sprintf("ends=%d", ends), func(b *testing.B) {
			c := newChurn(b)
			dice := rand.New(rand.NewPCG(3, uint64(ends)))
			var list [][]blockhash.Hash
			for i := range prompts {
				tokens := make([]uint32, length*16)
				for j := range tokens {
					tokens[j] = 3_000_000_000 + uint32(i*len(tokens)+j)
				}
				list = append(list, blockhash.Chain(nil, tokens, 16, blockhash.Namespace{}))
				for slot := range churnRanks {
					lead := 32 // a system prompt's
					if slot > 0 && slot < ends {
						lead = 32 + dice.IntN(length-32)
					}
					ev := &kvblock.Stored{BlockSize: 16, Tokens: tokens[:lead*16]}
					for j := range lead {
						ev.Hashes = append(ev.Hashes, kvblock.EngineHash(1<<60+i*length+j))
					}
					c.ix.Store(replica.Slot(slot), ev)
				}
			}
			timeMatches(b, c.ix, list)
		})
	}
}

// timeMatches asks for prompts in random order and reports how long single lookups took.
func timeMatches(b *testing.B, ix *kvindex.Index, list [][]blockhash.Hash) {
	b.Helper()
	dice := rand.New(rand.NewPCG(1, 2))
	var room [churnRanks]kvindex.Overlap
	var prompt []blockhash.Hash
	times := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		// In life the hashes were just computed: they are at hand, the index is not.
		prompt = append(prompt[:0], list[dice.IntN(len(list))]...)
		begin := time.Now()
		ix.Match(room[:0], prompt)
		if d := time.Since(begin); len(times) < cap(times) {
			times = append(times, d)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}

// BenchmarkPredict believes a prompt of 725 blocks and takes it back: what a routed request costs.
func BenchmarkPredict(b *testing.B) {
	c := newChurn(b)
	tokens := make([]uint32, 725*16)
	for i := range tokens {
		tokens[i] = 4_000_000_000 + uint32(i)
	}
	prompt := blockhash.Chain(nil, tokens, 16, blockhash.Namespace{})
	b.ReportAllocs()
	n, from := 0, usage()
	for b.Loop() {
		c.ix.Predict(replica.Slot(n%churnRanks), prompt, noDeadline).End()
		n++
	}
	report(b, from, n)
}

// report adds the processor time per operation, which other work on the machine changes less
// than the time that passes.
func report(b *testing.B, from syscall.Rusage, n int) {
	var to syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &to) == nil {
		used := to.Utime.Nano() + to.Stime.Nano() - from.Utime.Nano() - from.Stime.Nano()
		b.ReportMetric(float64(used)/float64(n), "cpu-ns/op")
	}
}

func usage() (u syscall.Rusage) {
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // zero, and no figure, when it fails
	return u
}

// BenchmarkRouted notes prompts of so many blocks, all new or with nine tenths of them known, for ranks
// without events that are full.
func BenchmarkRouted(b *testing.B) {
	const ranks, capacity = 8, 16384
	for _, length := range []int{500, 4000} {
		for _, shared := range []int{0, length * 9 / 10} {
			b.Run(fmt.Sprintf("blocks=%d/shared=%d", length, shared), func(b *testing.B) {
				ix := newIndex(b, 0)
				for slot := range replica.Slot(ranks) {
					if err := ix.AddRank(slot, kvindex.RankInfo{Capacity: capacity}); err != nil {
						b.Fatal(err)
					}
				}
				dice := rand.New(rand.NewPCG(1, 1))
				prompt := make([]blockhash.Hash, length)
				next := func() {
					for i := range prompt {
						if i >= shared || prompt[i] == 0 {
							prompt[i] = blockhash.Hash(dice.Uint64())
						}
					}
				}
				for i := range ranks * capacity / length {
					next()
					ix.Routed(replica.Slot(i%ranks), prompt)
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					next()
					ix.Routed(replica.Slot(n%ranks), prompt)
					n++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*length), "ns/block")
			})
		}
	}
}
