package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is a tiny engine with round numbers: 1,000 prompt tokens a second, 10 ms a step.
func config() core.Config {
	c := core.DefaultConfig()
	c.BlockSize, c.Blocks, c.MaxModelLen, c.MaxBatchedTokens, c.MaxSeqs = 4, 17, 64, 100, 4
	c.Timing = enginemodel.Timing{PrefillRate: 1000, HalfContext: 1e12, Base: 10 * time.Millisecond, Speed: 1}
	return c
}

// bench runs test with an engine in virtual time.
func bench(t *testing.T, cfg core.Config, test func(c *core.Core, held func() map[core.Digest]int)) {
	synctest.Test(t, func(t *testing.T) {
		holds := map[core.Digest]int{}
		c := core.New(cfg, func(events []core.Event) {
			for _, ev := range events {
				for _, h := range ev.Hashes {
					if ev.Kind == core.Stored {
						holds[h]++
					} else if holds[h]--; holds[h] == 0 {
						delete(holds, h)
					}
				}
				if ev.Kind == core.Cleared {
					clear(holds)
				}
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		test(c, func() map[core.Digest]int { synctest.Wait(); return holds })
		stop()
		<-done
	})
}

func prompt(n, first int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first + i)
	}
	return ids
}

// finish waits for the end of s.
func finish(t *testing.T, s *core.Sequence) ([]uint32, core.Finish) {
	t.Helper()
	var out []uint32
	for {
		<-s.Ready()
		var f core.Finish
		if out, f = s.Take(out); f != core.Running {
			return out, f
		}
	}
}

func next(i int) uint32 { return uint32(9000 + i) }

func TestTimeFollowsTheModel(t *testing.T) {
	bench(t, config(), func(c *core.Core, _ func() map[core.Digest]int) {
		s := core.NewSequence(core.Params{Prompt: prompt(20, 0), Next: next, MaxTokens: 3})
		c.Submit(s)
		out, why := finish(t, s)
		if len(out) != 3 || why != core.FinishLength {
			t.Fatalf("got %d tokens, %v", len(out), why)
		}
		times := s.Times()
		if got, want := times.FirstToken.Sub(times.Arrived), 30*time.Millisecond; got != want {
			t.Errorf("first token after %v, want %v", got, want)
		}
		if got, want := times.Done.Sub(times.FirstToken), 20*time.Millisecond; got != want {
			t.Errorf("two more tokens after %v, want %v", got, want)
		}
	})
}

func TestLongPromptsAreComputedInChunks(t *testing.T) {
	cfg := config()
	cfg.MaxBatchedTokens = 10
	bench(t, cfg, func(c *core.Core, _ func() map[core.Digest]int) {
		short := core.NewSequence(core.Params{Prompt: prompt(2, 500), Next: next, MaxTokens: 4})
		c.Submit(short)
		<-short.Ready()
		long := core.NewSequence(core.Params{Prompt: prompt(27, 0), Next: next, MaxTokens: 1})
		c.Submit(long)
		_, _ = finish(t, long)
		times := long.Times()
		// Three steps of nine tokens each beside the running sequence.
		if got, want := times.FirstToken.Sub(times.Scheduled), 57*time.Millisecond; got != want {
			t.Errorf("first token after %v, want %v", got, want)
		}
		_, _ = finish(t, short)
	})
}

func TestAnswersAreCachedToo(t *testing.T) {
	bench(t, config(), func(c *core.Core, held func() map[core.Digest]int) {
		s := core.NewSequence(core.Params{Prompt: prompt(6, 0), Next: next, MaxTokens: 7})
		c.Submit(s)
		out, _ := finish(t, s)
		// 6 + 7 tokens, the last of which was never computed: 12 in the cache, 3 blocks.
		if got := len(held()); got != 3 {
			t.Errorf("%d blocks announced, want 3", got)
		}
		again := core.NewSequence(core.Params{Prompt: append(prompt(6, 0), out...), Next: next, MaxTokens: 1})
		c.Submit(again)
		_, _ = finish(t, again)
		if got := again.Cached(); got != 12 {
			t.Errorf("the next turn hits %d tokens, want 12", got)
		}
	})
}

func TestTheSameBlockTwiceIsAnnouncedTwice(t *testing.T) {
	bench(t, config(), func(c *core.Core, held func() map[core.Digest]int) {
		for range 2 {
			s := core.NewSequence(core.Params{Prompt: prompt(8, 0), Next: next, MaxTokens: 1})
			c.Submit(s)
			_, _ = finish(t, s)
		}
		// The second request hits one block and computes the last one again.
		counts := map[int]int{}
		for _, n := range held() {
			counts[n]++
		}
		if counts[1] != 1 || counts[2] != 1 {
			t.Errorf("announcements per block: %v, want one block once and one twice", counts)
		}
	})
}

func TestAbortFreesAtOnce(t *testing.T) {
	bench(t, config(), func(c *core.Core, _ func() map[core.Digest]int) {
		s := core.NewSequence(core.Params{Prompt: prompt(40, 0), Next: next, MaxTokens: 20})
		c.Submit(s)
		time.Sleep(5 * time.Millisecond) // in the middle of its first step
		c.Abort(s, core.FinishAbort)
		if got := c.Stats(); got.Running != 0 || got.Usage != 0 || got.Finished[core.FinishAbort] != 1 {
			t.Errorf("after the abort: %+v", got)
		}
		c.Abort(s, core.FinishAbort)
		if got := c.Stats().Finished[core.FinishAbort]; got != 1 {
			t.Errorf("aborted twice, counted %d", got)
		}
	})
}

func TestResetRefusesWhileInUse(t *testing.T) {
	bench(t, config(), func(c *core.Core, held func() map[core.Digest]int) {
		s := core.NewSequence(core.Params{Prompt: prompt(8, 0), Next: next, MaxTokens: 5})
		c.Submit(s)
		<-s.Ready()
		if c.Reset() {
			t.Error("the cache was emptied under a running request")
		}
		_, _ = finish(t, s)
		if !c.Reset() {
			t.Error("an idle cache was not emptied")
		}
		if n := len(held()); n != 0 {
			t.Errorf("%d blocks are still announced", n)
		}
	})
}

func TestYoungestIsPreemptedAndFinishesLater(t *testing.T) {
	bench(t, config(), func(c *core.Core, _ func() map[core.Digest]int) {
		var list []*core.Sequence
		for i := range 2 { // 16 blocks of 4: both fit at first, not at their full length
			s := core.NewSequence(core.Params{Prompt: prompt(24, 100*i), Next: next, MaxTokens: 30})
			c.Submit(s)
			list = append(list, s)
		}
		for i, s := range list {
			if out, why := finish(t, s); len(out) != 30 || why != core.FinishLength {
				t.Errorf("sequence %d made %d tokens, %v", i, len(out), why)
			}
		}
		if got := c.Stats(); got.Preemptions == 0 || got.Usage != 0 {
			t.Errorf("after both: %+v, want preemptions and no usage", got)
		}
	})
}

// TestCacheAgreesWithAList plays random requests against the plainest cache there is.
func TestCacheAgreesWithAList(t *testing.T) {
	cfg := config()
	bench(t, cfg, func(c *core.Core, held func() map[core.Digest]int) {
		dice := rand.New(rand.NewPCG(1, 2))
		model := &naive{size: cfg.BlockSize, room: cfg.Blocks - 1}
		for i := range 400 {
			n := 5 + dice.IntN(40)
			ids := prompt(n, 0)
			for at := dice.IntN(n); at < n; at++ { // a shared beginning, then something else
				ids[at] = uint32(1000 + dice.IntN(3))
			}
			s := core.NewSequence(core.Params{Prompt: ids, Next: next, MaxTokens: 1})
			c.Submit(s)
			_, _ = finish(t, s)
			if got, want := s.Cached(), model.play(ids); got != want {
				t.Fatalf("request %d: cached %d, want %d", i, got, want)
			}
			total := 0
			for _, k := range held() {
				total += k
			}
			if total != model.named() {
				t.Fatalf("request %d: %d blocks announced, want %d", i, total, model.named())
			}
		}
	})
}

// naive is the cache as one list of blocks, the next to be reused first.
type naive struct {
	size, room int
	blocks     []string // "" has no name
}

func (m *naive) named() int {
	n := 0
	for _, b := range m.blocks {
		if b != "" {
			n++
		}
	}
	return n
}

// play runs one request alone and gives its hit.
func (m *naive) play(ids []uint32) int {
	if m.blocks == nil {
		m.blocks = make([]string, m.room)
	}
	name := func(i int) string { return fmt.Sprint(ids[:(i+1)*m.size]) }
	var mine []string
	take := func(at int) {
		mine = append(mine, m.blocks[at])
		m.blocks = append(m.blocks[:at:at], m.blocks[at+1:]...)
	}
	find := func(want string) int {
		for i, b := range m.blocks {
			if b == want {
				return i
			}
		}
		return -1
	}
	hits := 0
	for hits < (len(ids)-1)/m.size && find(name(hits)) >= 0 {
		hits++
	}
	for i := range hits {
		take(find(name(i)))
	}
	for i := hits; i < (len(ids)+m.size-1)/m.size; i++ {
		take(0)
		mine[i] = ""
		if (i+1)*m.size <= len(ids) {
			mine[i] = name(i)
		}
	}
	for i := len(mine) - 1; i >= 0; i-- {
		m.blocks = append(m.blocks, mine[i])
	}
	return hits * m.size
}
