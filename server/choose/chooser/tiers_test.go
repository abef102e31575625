package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
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

// naming asks for a prompt of which a directory says that the rank at slot 0 can load a part.
func (f *fleet) naming(number, n int, h directory.Held) *chooser.Request {
	req := f.streamed(number, n)
	req.Directory = &directory.Answer{Lookup: decision.Lookup{Source: directory.LMCache, Result: directory.Hit}, Held: []directory.Held{h, {Slot: 77, Store: n}}}
	return req
}

// A directory adds to what the index knows, and takes nothing from it.
func TestADirectorysWordContinuesTheIndex(t *testing.T) {
	const n = 8001
	for name, tt := range map[string]struct {
		held      func(f *fleet)
		word      directory.Held
		gpu, host uint32
		disk      uint32
		named     uint32
	}{
		"nothing is known":                {nil, directory.Held{Host: 3200, Store: 6400}, 0, 3200, 3200, 6400},
		"a part of a block is none":       {nil, directory.Held{Host: 3207, Store: 3207}, 0, 3200, 0, 3200},
		"the GPU holds a part":            {func(f *fleet) { f.holds(0, 1, 1600) }, directory.Held{Host: 3200, Store: 6400}, 1600, 1600, 3200, 4800},
		"the GPU holds more":              {func(f *fleet) { f.holds(0, 1, 4800) }, directory.Held{Host: 3200, Store: 3200}, 4800, 0, 0, 0},
		"host memory holds a part":        {func(f *fleet) { f.keeps(0, 1, 1600, kvblock.TierCPU) }, directory.Held{Store: 4800}, 0, 1600, 3200, 3200},
		"the store holds it":              {func(f *fleet) { f.keeps(0, 1, 4800, kvblock.TierDisk) }, directory.Held{Store: 4800}, 0, 0, 4800, 0},
		"the GPU lacks the beginning":     {func(f *fleet) { f.holds(0, 1, 1600) }, directory.Held{From: 3200, Host: 6400, Store: 6400}, 1600, 0, 0, 0},
		"the GPU has just the beginning":  {func(f *fleet) { f.holds(0, 1, 3200) }, directory.Held{From: 3200, Host: 6400, Store: 6400}, 3200, 3200, 0, 3200},
		"the whole prompt, and no engine": {nil, directory.Held{Host: 8001, Store: 99_999_999}, 0, 8000, 0, 8000},
	} {
		f := newFleet(t, 2, nil)
		f.know()
		if tt.held != nil {
			tt.held(f)
		}
		tt.word.Slot = 0
		c := f.choose(f.naming(1, n, tt.word))
		pick := c.Decision.Pick()
		if c.Replica.ID != "r0" || pick.GPU != tt.gpu || pick.CPU != tt.host || pick.Disk != tt.disk || pick.Named != tt.named {
			t.Errorf("%s: %s holds %d, %d in host memory, %d in a store, %d by the directory's word; want %d, %d, %d, %d", name, c.Replica.ID, pick.GPU, pick.CPU, pick.Disk, pick.Named, tt.gpu, tt.host, tt.disk, tt.named)
		}
		if pick.Loadable != tt.host+tt.disk || pick.Uncached != n-tt.gpu-tt.host-tt.disk {
			t.Errorf("%s: %d loadable, %d to compute", name, pick.Loadable, pick.Uncached)
		}
		if l := c.Decision.Lookup; l == nil || l.Source != directory.LMCache || l.Result != directory.Hit {
			t.Errorf("%s: the decision has %+v", name, l)
		}
		c.Release(done(decision.EndCanceled))
		f.empty()
	}
}

// A prompt of which the engine reads no cached block is computed, whatever a directory says.
func TestADirectoryIsNotHeardWhereTheCacheIsNotRead(t *testing.T) {
	f := newFleet(t, 2, nil)
	req := f.naming(1, 8001, directory.Held{Host: 6400, Store: 6400})
	req.Unread = true
	c := f.choose(req)
	for _, one := range c.Decision.List() {
		if one.Uncached != 8001 || one.Named != 0 {
			t.Errorf("%s: %d to compute, %d by the directory's word", one.Replica, one.Uncached, one.Named)
		}
	}
	c.Release(done(decision.EndCanceled))
}

// Lies of a directory cost the directory its credit. What the engine's own events name in the same tier keeps it.
func TestALyingDirectoryLosesItsOwnCreditAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		for number := range 60 {
			f.keeps(0, number, 1600, kvblock.TierDisk)
			req := f.naming(number, 8001, directory.Held{Store: 6400})
			req.Options.Pinned, req.Options.PinnedRank = "r0", -1
			c := f.choose(req)
			answered(c, time.Second, 8001, 1600) // it finds what its events named
			time.Sleep(time.Minute)
		}
		f.keeps(0, 100, 1600, kvblock.TierDisk)
		req := f.naming(100, 8001, directory.Held{Store: 6400})
		req.Options.Pinned, req.Options.PinnedRank = "r0", -1
		c := f.choose(req)
		if pick := c.Decision.Pick(); pick.Disk != 6400 || pick.Named != 4800 || pick.Loadable < 1590 || pick.Loadable > 1600 {
			t.Errorf("%d tokens in the store, %d by the directory's word, %d counted on; want 6400, 4800 and 1600", pick.Disk, pick.Named, pick.Loadable)
		}
		c.Release(done(decision.EndCanceled))
	})
}
