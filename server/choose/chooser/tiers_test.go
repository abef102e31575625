package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// keeps moves a prompt that a rank holds from its GPU to another tier.
func (f *fleet) keeps(slot replica.Slot, number, n int, tier kvblock.Tier) {
	f.holds(slot, number, n)
	names := make([]kvblock.EngineHash, n/block)
	for i := range names {
		names[i] = kvblock.EngineHash(number*100_000 + i + 1)
	}
	f.index.Store(slot, &kvblock.Stored{Hashes: names, Tier: tier})
	f.index.Remove(slot, &kvblock.Removed{Hashes: names})
}

// streamed asks for a prompt whose answer is streamed, without a wait.
func (f *fleet) streamed(number, n int) *chooser.Request {
	req := f.request(number, n)
	req.NoQueue = true
	return req
}

// answered has the engine serve a choice: the first token comes after so long, and the usage counts so many cached tokens.
func answered(c *chooser.Choice, first time.Duration, prompt, cached int) {
	time.Sleep(first)
	c.FirstToken()
	c.Progress(20)
	c.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: prompt, OutputTokens: 20, CachedTokens: cached})
}

func TestHostMemoryIsCheaperThanComputingAndDearerThanTheGPU(t *testing.T) {
	f := newFleet(t, 3, nil)
	f.know()
	f.keeps(1, 1, 8000, kvblock.TierCPU)
	c := f.choose(f.streamed(1, 8001))
	pick := c.Decision.Pick()
	if c.Replica.ID != "r1" || pick.CPU != 8000 || pick.GPU != 0 || pick.Loadable != 8000 || pick.Uncached != 1 || pick.Load != 0.005+8000*4e-6 {
		t.Errorf("chose %s, %d tokens in host memory, %d loadable in %v s, %d to compute", c.Replica.ID, pick.CPU, pick.Loadable, pick.Load, pick.Uncached)
	}
	for _, one := range c.Decision.List() {
		if one.Replica != "r1" && (one.Load != 0 || one.Uncached != 8001) {
			t.Errorf("%s holds nothing and has a load of %v s and %d tokens to compute", one.Replica, one.Load, one.Uncached)
		}
	}
	c.Release(done(decision.EndCanceled))
	f.keeps(0, 2, 8000, kvblock.TierDisk)
	f.keeps(1, 2, 8000, kvblock.TierCPU)
	f.holds(2, 2, 8000)
	for _, want := range []replica.ID{"r2", "r1", "r0"} {
		req := f.streamed(2, 8001)
		for _, r := range f.replicas {
			if r.ID > want {
				req.Options.Denied = append(req.Options.Denied, r.ID)
			}
		}
		c := f.choose(req)
		if c.Replica.ID != want {
			t.Errorf("without %v: chose %s, want %s", req.Options.Denied, c.Replica.ID, want)
		}
		c.Release(done(decision.EndCanceled))
	}
	f.empty()
}

// Loads that take longer than computing lose, once requests have shown it: by the engine's counts nothing is wrong with them.
func TestASlowTierIsLearnedFromItsLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		loaded := 0
		for number := range 30 {
			f.keeps(0, number, 8000, kvblock.TierCPU)
			c := f.choose(f.streamed(number, 8001))
			if c.Replica.ID == "r0" {
				loaded++
				answered(c, 3*time.Second, 8001, 8000)
			} else {
				answered(c, time.Second+100*time.Millisecond, 8001, 0)
			}
			time.Sleep(time.Minute)
		}
		if loaded == 0 || loaded > 8 {
			t.Errorf("%d of 30 requests went to loads of 3 s that computing takes 1.1 s for", loaded)
		}
		f.holds(0, 100, 8000)
		if c := f.choose(f.streamed(100, 8001)); c.Replica.ID != "r0" {
			t.Error("the blocks on its GPU count less, too")
		}
	})
}

// An engine that does not find what its events name is not counted on; the blocks on its GPU are.
func TestATierThatDeliversNothingLosesItsCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		for number := range 60 {
			f.keeps(0, number, 8000, kvblock.TierCPU)
			req := f.streamed(number, 8001)
			req.Options.Pinned, req.Options.PinnedRank = "r0", -1
			c := f.choose(req)
			answered(c, time.Second+100*time.Millisecond, 8001, 0)
			time.Sleep(time.Minute)
		}
		f.keeps(0, 100, 8000, kvblock.TierCPU)
		c := f.choose(f.streamed(100, 8001))
		for _, one := range c.Decision.List() {
			if one.Uncached != 8001 || one.Load != 0 {
				t.Errorf("%s: %d tokens to compute and a load of %v s, want 8001 and none", one.Replica, one.Uncached, one.Load)
			}
		}
		c.Release(done(decision.EndCanceled))
		f.holds(0, 101, 8000)
		c = f.choose(f.streamed(101, 8001))
		if pick := c.Decision.Pick(); c.Replica.ID != "r0" || pick.GPU != 8000 || pick.Suspicions != 0 {
			t.Errorf("chose %s with %d tokens on the GPU, suspicions %d: the GPU's claims were right", c.Replica.ID, pick.GPU, pick.Suspicions)
		}
	})
}
