package indexbench

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// lap is the times of lookups.
type lap struct {
	each []time.Duration
	took time.Duration
	cpu  time.Duration // of the whole process
}

func (l *lap) at(q float64) float64 {
	return float64(measure.Quantile(l.each, q))
}

// look asks for prompts in random order until stop, timing each.
func (b *bench) look(seed uint64, stop func() bool) lap {
	dice := rand.New(rand.NewPCG(b.Seed, seed))
	each := make([]time.Duration, 0, 1<<20)
	var room [256]kvindex.Overlap
	begin, used := time.Now(), measure.CPUTime()
	var prompt []blockhash.Hash
	for len(each) < cap(each) {
		// In life the hashes were just computed: they are at hand, the index is not.
		prompt = append(prompt[:0], b.prompts[dice.IntN(len(b.prompts))]...)
		asked := time.Now()
		b.ix.Match(room[:0], prompt)
		each = append(each, time.Since(asked))
		if len(each)%64 == 0 && stop() {
			break
		}
	}
	l := lap{each: each, took: time.Since(begin), cpu: measure.CPUTime() - used}
	slices.Sort(l.each)
	return l
}

// after returns a stop that becomes true when d is over.
func after(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

// perLookup shares out the allocations, less the few allocations of the measurement itself.
func perLookup(allocations uint64, lookups int) float64 {
	const own = 8
	return float64(max(allocations, own)-own) / float64(lookups)
}

// lookups measures one goroutine, then two at once.
func (b *bench) lookups(context.Context) error {
	b.look(1, after(b.Phase/4)) // warm up
	var before, behind runtime.MemStats
	runtime.ReadMemStats(&before)
	one := b.look(2, after(b.Phase))
	runtime.ReadMemStats(&behind)
	b.result.AllocsPerLookup = perLookup(behind.Mallocs-before.Mallocs, len(one.each))
	b.result.LookupP50, b.result.LookupP99, b.result.LookupP999 = one.at(.5), one.at(.99), one.at(.999)
	b.result.LookupCPU = float64(one.cpu.Nanoseconds()) / float64(len(one.each))
	b.result.Lookups = float64(len(one.each)) / one.took.Seconds()
	var wg sync.WaitGroup
	var rates [2]float64
	var asked atomic.Int64
	used := measure.CPUTime()
	for i := range rates {
		wg.Go(func() {
			l := b.look(uint64(3+i), after(b.Phase))
			rates[i] = float64(len(l.each)) / l.took.Seconds()
			asked.Add(int64(len(l.each)))
		})
	}
	wg.Wait()
	if used = measure.CPUTime() - used; used > 0 {
		b.result.TwoCoreCPU = 2 * b.result.LookupCPU * float64(asked.Load()) / float64(used.Nanoseconds())
	}
	b.result.TwoCore = (rates[0] + rates[1]) / b.result.Lookups
	return nil
}

// lookupsBesideWrites measures one goroutine's lookups while another applies events at the rate
// asked for.
func (b *bench) lookupsBesideWrites(ctx context.Context) error {
	s, err := b.record(ctx, int(float64(b.WriteRate)*b.Phase.Seconds()))
	if err != nil {
		return err
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	var rate float64
	wg.Go(func() {
		defer done.Store(true)
		a := applier{ix: b.ix, p: newPlayer(b.fleet.requests)}
		begin := time.Now()
		n := 0
		for i := range s.ops {
			n += a.apply(s, i)
			due := time.Duration(float64(n) / float64(b.WriteRate) * 1e9)
			if i%64 == 0 {
				if ahead := due - time.Since(begin); ahead > 200*time.Microsecond {
					time.Sleep(ahead)
				}
			}
		}
		rate = float64(n) / time.Since(begin).Seconds()
	})
	l := b.look(5, done.Load)
	wg.Wait()
	b.result.WritesPerS = rate
	b.result.LookupP50Write, b.result.LookupP99Write = l.at(.5), l.at(.99)
	return nil
}

// events measures how fast recorded events are applied, by one goroutine and by two that share
// the ranks. An applied event is visible: there is nothing left to drain.
func (b *bench) events(ctx context.Context) error {
	for _, workers := range []uint32{1, 2} {
		s, err := b.record(ctx, int(3e6*b.Phase.Seconds()))
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		var total atomic.Int64
		begin, used := time.Now(), measure.CPUTime()
		for w := range workers {
			wg.Go(func() {
				a := applier{ix: b.ix, p: newPlayer(b.fleet.requests)}
				total.Add(int64(a.applyAll(s, func(rank uint32) bool { return rank%workers == w })))
			})
		}
		wg.Wait()
		rate := float64(total.Load()) / time.Since(begin).Seconds()
		b.result.ApplyCPU = float64((measure.CPUTime() - used).Nanoseconds()) / float64(total.Load())
		if workers == 1 {
			b.result.BlockOpsPerSOneCore = rate
		} else {
			b.result.BlockOpsPerS, b.result.BlockOps = rate, int(total.Load())
		}
	}
	return nil
}
