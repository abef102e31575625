//go:build unix

package kvindex_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/kvblock"
	"github.com/kvpilot/kvpilot/server/kvindex"
	"github.com/kvpilot/kvpilot/server/replica"
)

var benchBlocks = flag.Int("blocks", 1_000_000, "blocks that the benchmarked index holds")

// churn is an index of 64 full ranks: each turn stores a prompt's blocks on one rank and
// removes as many of its oldest, one per event as vLLM does.
type churn struct {
	ix    *kvindex.Index
	turns int
	ring  []int // turns per rank that are held
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

func (c *churn) remove(turn int) {
	var one [1]kvblock.EngineHash
	c.gone.Hashes = one[:]
	for i := range churnRun {
		c.gone.Hashes[0] = c.name(turn, i)
		c.ix.Remove(replica.Slot(turn%churnRanks), &c.gone)
	}
}

// BenchmarkApply reports the cost of a stored and a removed block together.
func BenchmarkApply(b *testing.B) {
	c := newChurn(b)
	held := c.turns
	b.ReportAllocs()
	b.ResetTimer()
	from := usage()
	for i := 0; i < b.N; i += churnRun {
		c.remove(c.turns - held)
		c.store(c.turns)
	}
	report(b, from, b.N)
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
	var room [64]kvindex.Overlap
	prompt := make([]blockhash.Hash, churnRun+625)
	times := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		// In life the hashes were just computed: they are at hand, the index is not.
		next := prompt[:copy(prompt, list[dice.IntN(prompts)])]
		begin := time.Now()
		c.ix.Match(room[:0], next)
		if d := time.Since(begin); len(times) < cap(times) {
			times = append(times, d)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
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
