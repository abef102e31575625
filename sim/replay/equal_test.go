package replay

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// The same requests at the same times, once on the simulated replica's core in (synctest's) real time
// and once on the player's engine in virtual time: every first and last token comes at the same moment,
// every hit is as long, and as many requests are preempted.
func TestSimulatorAndPlayerAgree(t *testing.T) {
	preempted := uint64(0)
	for seed := range uint64(12) {
		trace := randomCalls(rand.New(rand.NewPCG(seed, 9)))
		w := newWorkload(trace, 16)
		p := Profiles()[0]
		p.CacheTokens, p.MaxBatchedTokens, p.MaxSeqs, p.Timing.Speed = 3000, 300, 8, 3
		engines := newEngines(&p, Hardware{}, 1, 16)
		s := newSim(w, engines, 1, 1)
		s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, len(trace.Calls))}
		s.run(0)
		real, counts := playCore(t, w, &p)
		for i := range trace.Calls {
			first, done, cached := s.first[i], s.done[i], s.cached[i]
			if r := real[i]; math.Abs(r.first-first) > 1e-5 || math.Abs(r.done-done) > 1e-5 || r.cached != cached {
				t.Fatalf("seed %d, request %d: the simulator has %+v, the player first %v, done %v, cached %d", seed, i, r, first, done, cached)
			}
		}
		if got := engines[0].machine.Counts(); got != counts {
			t.Fatalf("seed %d: the simulator counts %+v, the player %+v", seed, counts, got)
		}
		preempted += counts.Preemptions
	}
	if preempted < 10 {
		t.Errorf("%d preemptions: the schedules test too little", preempted)
	}
}

// randomCalls makes more work than the engine of the test can hold, with shared beginnings.
func randomCalls(dice *rand.Rand) *Trace {
	t := &Trace{Name: "random", Chunk: 16}
	at, fresh := 0.0, uint64(0)
	for i := range 80 {
		at += dice.ExpFloat64() * 0.15
		c := Call{At: at, In: 1 + dice.IntN(400), Out: 1 + dice.IntN(200), Session: i, Prev: -1}
		if dice.IntN(8) == 0 {
			c.In += dice.IntN(1500)
		}
		if i > 0 && dice.IntN(2) == 0 {
			old := &t.Calls[dice.IntN(i)]
			c.IDs = append(c.IDs, old.IDs[:dice.IntN(old.In/16+1)]...) // chunks that its prompt fills
		}
		c.IDs = c.IDs[:min(len(c.IDs), c.In/16)]
		for len(c.IDs) < (c.In+15)/16 {
			fresh++
			c.IDs = append(c.IDs, fresh)
		}
		t.Calls = append(t.Calls, c)
	}
	return t
}

type seen struct {
	first, done float64
	cached      int
}

// playCore plays a workload on a simulated replica's core.
func playCore(t *testing.T, w *workload, p *Profile) ([]seen, enginemodel.Counts) {
	t.Helper()
	out := make([]seen, len(w.Calls))
	var counts enginemodel.Counts
	synctest.Test(t, func(t *testing.T) {
		cfg := core.DefaultConfig()
		cfg.BlockSize, cfg.Blocks, cfg.MaxModelLen = w.block, p.CacheTokens/w.block+1, p.CacheTokens/w.block*w.block
		cfg.MaxBatchedTokens, cfg.MaxSeqs, cfg.Timing = p.MaxBatchedTokens, p.MaxSeqs, p.Timing
		c := core.New(cfg, func([]core.Event) {})
		ctx, stop := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { c.Run(ctx) })
		start := time.Now()
		var answers sync.WaitGroup
		for i := range w.Calls {
			call := &w.Calls[i]
			answers.Go(func() {
				time.Sleep(time.Duration(call.At * float64(time.Second)))
				var prompt []uint32
				for j := range (call.In + w.block - 1) / w.block {
					prompt = w.appendBlock(prompt, i, j)
				}
				s := core.NewSequence(core.Params{
					// The tokens of an answer occur nowhere else.
					Prompt: prompt[:call.In], Next: func(n int) uint32 { return uint32(1<<31 + i<<12 + n) }, MaxTokens: call.Out, IgnoreEnd: true,
				})
				c.Submit(s)
				for f := core.Running; f == core.Running; {
					<-s.Ready()
					_, f = s.Take(nil)
				}
				times := s.Times()
				out[i] = seen{first: times.FirstToken.Sub(start).Seconds(), done: times.Done.Sub(start).Seconds(), cached: s.Cached()}
			})
		}
		answers.Wait()
		counts = c.Stats().Counts
		stop()
		wait.Wait()
	})
	return out, counts
}
