package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// lowered is a tiny engine with host memory: 16 blocks on the GPU, loads of 1 s and 10 ms a block.
func lowered() core.Config {
	cfg := config()
	cfg.Lower.Host = core.LowerTier{Blocks: 100, Start: time.Second, PerToken: 2500 * time.Microsecond}
	return cfg
}

func TestHostMemoryGivesBackWhatTheGPULost(t *testing.T) {
	bench(t, lowered(), func(c *core.Core, _ func() map[core.Digest]int) {
		ask := func(first int) *core.Sequence {
			s := core.NewSequence(core.Params{Prompt: prompt(41, first), Next: next, MaxTokens: 1})
			c.Submit(s)
			_, _ = finish(t, s)
			return s
		}
		ask(0)
		ask(500)
		ask(900)
		again := ask(0)
		times := again.Times()
		// Ten blocks are loaded, one token is computed.
		if got, want := times.FirstToken.Sub(times.Arrived), 1100*time.Millisecond+11*time.Millisecond; again.Cached() != 40 || got != want {
			t.Errorf("%d tokens cached, the first token after %v; want 40 and %v", again.Cached(), got, want)
		}
		if got := c.Stats(); got.Loaded != 40 || got.Hits != 0 || got.Waiting != 0 {
			t.Errorf("%d tokens loaded, %d found on the GPU, %d wait", got.Loaded, got.Hits, got.Waiting)
		}
	})
}

func TestEventsNameTheTier(t *testing.T) {
	for _, describing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := lowered()
			cfg.Lower.Host.Blocks, cfg.Lower.SelfDescribing = 12, describing
			cfg.Lower.Store.Blocks = 50
			cfg.Lower.Shared = core.NewStore(&cfg)
			var all []core.Event
			c := core.New(cfg, func(events []core.Event) { all = append(all, events...) })
			done := make(chan struct{})
			ctx, stop := context.WithCancel(t.Context())
			go func() { c.Run(ctx); close(done) }()
			for first := range 2 {
				s := core.NewSequence(core.Params{Prompt: prompt(41, 500*first), Next: next, MaxTokens: 1})
				c.Submit(s)
				_, _ = finish(t, s)
			}
			last := core.NewSequence(core.Params{Prompt: prompt(9, 2000), Next: next, MaxTokens: 1})
			c.Submit(last)
			_, _ = finish(t, last)
			stop()
			<-done
			held := map[kvblock.Tier]int{}
			for _, ev := range all {
				n := len(ev.Hashes)
				if ev.Kind == core.Removed {
					n = -n
				} else if full := len(ev.Tokens) == n*4 && ev.BlockSize == 4; full != (describing || ev.Tier == kvblock.TierGPU) {
					t.Errorf("self-describing %t: %d blocks in %v with %d tokens, of size %d", describing, n, ev.Tier, len(ev.Tokens), ev.BlockSize)
				}
				held[ev.Tier] += n
			}
			if held[kvblock.TierGPU] != 14 || held[kvblock.TierDisk] != 22 || held[kvblock.TierCPU] != 12 {
				t.Errorf("by the events, blocks are held as %v; want 14, 12 and 22", held)
			}
		})
	}
}

// A client that leaves during a load, and an engine that stops then, leave nothing behind.
func TestALoadMayBeGivenUp(t *testing.T) {
	bench(t, lowered(), func(c *core.Core, _ func() map[core.Digest]int) {
		for first := range 3 {
			s := core.NewSequence(core.Params{Prompt: prompt(41, 500*first), Next: next, MaxTokens: 1})
			c.Submit(s)
			_, _ = finish(t, s)
		}
		var list []*core.Sequence
		for first := range 2 {
			s := core.NewSequence(core.Params{Prompt: prompt(21, 500*first), Next: next, MaxTokens: 1})
			c.Submit(s)
			list = append(list, s)
		}
		time.Sleep(100 * time.Millisecond)
		if got := c.Stats().Waiting; got != 2 {
			t.Errorf("%d wait for their loads, want 2", got)
		}
		c.Abort(list[0], core.FinishAbort)
		if got := c.Stats().Waiting; got != 1 {
			t.Errorf("%d wait after one was aborted, want 1", got)
		}
		// The engine stops now: the other one must end, or the bench would hang.
		go func() {
			if _, why := finish(t, list[1]); why != core.FinishAbort {
				t.Errorf("it ended by %v, want the abort", why)
			}
		}()
	})
}
