package chooser_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// long is the prompt of the tests below that is to give way: about eight seconds of prefill.
const long = 45000

// yielding has even one rank's requests give way.
func yielding(c *chooser.Config, _ *chooser.Params) { c.YieldRanks = 1 }

// live runs the chooser for a test in a bubble and returns how to stop it.
func (f *fleet) live() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = f.chooser.Run(ctx) }()
	return func() { cancel(); <-stopped }
}

// over reports whether the channel is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestALongPromptGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, yielding)
		defer f.live()()
		asked := 0
		req := f.request(1, long)
		req.Yield = func() { asked++ }
		first := f.choose(req)
		time.Sleep(2 * time.Second)
		second := f.choose(f.request(2, 1000))
		if asked != 1 || second.Decision.Overtook != req.ID || second.Decision.Held != 0 {
			t.Fatalf("the long prompt was asked %d times to give way, the short one overtook %q and was held %s; want 1, %q and 0s",
				asked, second.Decision.Overtook, second.Decision.Held, req.ID)
		}
		if pick := second.Decision.Pick(); pick.TTFT > 1 || pick.Yields < 4 {
			t.Errorf("a first token predicted after %.2f s with %.2f s that give way", pick.TTFT, pick.Yields)
		}
		if _, same := selector.Recompute(second.Decision); !same {
			t.Error("the recorded decision does not recompute to the same choice")
		}
		if first.Begin() {
			t.Error("the answer of a request that gave way may begin")
		}
		if over(first.Behind()) {
			t.Error("it may go on before the engine has the short one")
		}
		if second.Arrived(); !over(first.Behind()) {
			t.Error("it may not go on although the engine has the short one")
		}
		// The rank is the long prompt's next, before a third that is not much shorter.
		var third *chooser.Choice
		go func() { third = f.choose(f.request(3, 20000)) }()
		synctest.Wait()
		first.Release(done(decision.EndYielded))
		f.holds(0, 1, 16000) // what two seconds have computed
		req.Attempt, req.Resumes = 1, first
		resumed := f.choose(req)
		if third != nil {
			t.Error("a third request took the place of the one that gave way")
		}
		if d := resumed.Decision; !d.Resumes || d.Pick().GPU != 16000 {
			t.Errorf("it goes on with %d cached tokens, resumes %t", d.Pick().GPU, d.Resumes)
		}
		second.FirstToken()
		resumed.FirstToken()
		synctest.Wait()
		if !resumed.Begin() || asked != 1 {
			t.Errorf("it may begin: %t; asked %d times", resumed.Begin(), asked)
		}
		for _, c := range []*chooser.Choice{second, resumed, third} {
			c.Release(done(decision.EndCompleted))
		}
		f.empty()
		f.mu.Lock()
		defer f.mu.Unlock()
		if o := f.outcomes[0]; len(f.outcomes) != 4 || o.End != decision.EndYielded || o.ID != req.ID || o.Attempt != 0 {
			t.Errorf("%d outcomes, the first %+v", len(f.outcomes), o)
		}
	})
}

// However long a full step of the engine is, a prompt of many steps gives way.
func TestALongPromptGivesWayWhereStepsAreLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, yielding)
		defer f.live()()
		f.replicas[0].MaxBatchedTokens = 8192 // a second and more
		asked := 0
		req := f.request(1, long)
		req.Yield = func() { asked++ }
		first := f.choose(req)
		time.Sleep(time.Second)
		second := f.choose(f.request(2, 1000))
		if asked != 1 || second.Decision.Overtook != req.ID || second.Decision.Held != 0 {
			t.Errorf("the long prompt was asked %d times to give way, the short one overtook %q and was held %s; want 1, %q and 0s",
				asked, second.Decision.Overtook, second.Decision.Held, req.ID)
		}
		first.Release(done(decision.EndCanceled))
		second.FirstToken()
		second.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// Somebody else takes the room that was made, and another rank becomes free at that moment.
func TestWhoGoesElsewhereHasOvertakenNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, yielding)
		defer f.live()()
		book := func(id string, slot replica.Slot) *load.Reservation {
			t.Helper()
			res, err := f.book.Reserve(load.Request{ID: id, Slot: slot, PromptTokens: 4 * long, PrefillTokens: 4 * long, PrefillTime: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		other := book("other", 1)
		req := f.request(1, long)
		asked := 0
		req.Yield = func() {
			asked++
			book("first", 0)
			other.Release()
		}
		first := f.choose(req)
		if first.Slot != 0 {
			t.Fatalf("the long prompt went to slot %d", first.Slot)
		}
		second := f.choose(f.request(2, 1000))
		if asked != 1 || second.Slot != 1 || second.Decision.Tries == 0 {
			t.Fatalf("asked %d times, chosen slot %d after %d tries: the race did not happen", asked, second.Slot, second.Decision.Tries)
		}
		if got := second.Decision.Overtook; got != "" {
			t.Errorf("it overtook %q, which is on another rank", got)
		}
		first.Release(done(decision.EndYielded))
		second.Release(done(decision.EndCompleted))
	})
}

func TestWhoDoesNotGiveWay(t *testing.T) {
	for name, tc := range map[string]struct {
		config  func(*chooser.Config)
		feed    kvblock.FeedState
		change  func(*chooser.Request)
		then    func(*chooser.Choice)
		after   time.Duration
		arrives int // tokens of the one that comes; 0 is 1000
		same    bool
	}{
		"one whose answer has begun":          {then: func(c *chooser.Choice) { c.Begin() }},
		"one whose first token nobody sees":   {change: func(r *chooser.Request) { r.Unstreamed = true }},
		"one that is an estimate":             {change: func(r *chooser.Request) { r.Estimated = true }},
		"one on a rank without events":        {feed: kvblock.FeedNone},
		"one on a rank that lost events":      {feed: kvblock.FeedDegraded},
		"one that is nearly done":             {after: 7 * time.Second},
		"one that is not much longer":         {arrives: 12000},
		"one that the other counts on":        {arrives: long + 500, same: true}, // its prompt and a bit more
		"any, where the operator says no":     {config: func(c *chooser.Config) { c.YieldRanks = 0 }},
		"any, where ranks are few":            {config: func(c *chooser.Config) { c.YieldRanks = 2 }},
		"any, where nothing waits":            {config: func(c *chooser.Config) { c.HoldAbove = 0 }},
		"any to one that is chosen elsewhere": {config: func(c *chooser.Config) { c.Policy = decision.LeastRequests }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, func(c *chooser.Config, _ *chooser.Params) {
					c.YieldRanks = 1
					if tc.config != nil {
						tc.config(c)
					}
				})
				if tc.feed != 0 || name == "one on a rank without events" {
					f.index.SetState(0, tc.feed)
				}
				req := f.request(1, long)
				req.Yield = func() { t.Error("it was asked to give way") }
				if tc.change != nil {
					tc.change(req)
				}
				first := f.choose(req)
				if tc.then != nil {
					tc.then(first)
				}
				time.Sleep(max(tc.after, time.Second))
				number := 2
				if tc.same {
					number = 1
				}
				var second *chooser.Choice
				var all sync.WaitGroup
				all.Go(func() { second = f.choose(f.request(number, max(tc.arrives, 1000))) })
				synctest.Wait()
				first.FirstToken()
				all.Wait()
				first.Release(done(decision.EndCompleted))
				second.Release(done(decision.EndCompleted))
				f.empty()
			})
		})
	}
}

// Whatever becomes of the one that overtook, the other goes on.
func TestWhoOvertookMakesWayAgain(t *testing.T) {
	for name, end := range map[string]func(*chooser.Choice){
		"with its first token": func(c *chooser.Choice) { c.FirstToken() },
		"when it fails":        func(c *chooser.Choice) { c.Release(done(decision.EndFailed)) },
		"when it leaves":       func(c *chooser.Choice) { c.Release(done(decision.EndCanceled)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, yielding)
				defer f.live()()
				req := f.request(1, long)
				req.Yield = func() {}
				first := f.choose(req)
				second := f.choose(f.request(2, 1000))
				if over(first.Behind()) {
					t.Error("it may go on at once")
				}
				if end(second); !over(first.Behind()) {
					t.Error("it may not go on")
				}
				first.Release(done(decision.EndCanceled))
				second.Release(done(decision.EndCompleted))
				f.empty()
			})
		})
	}
}

// A caller that gave way and leaves then keeps the rank from nobody.
func TestWhoGaveWayAndLeaves(t *testing.T) {
	for name, leave := range map[string]func(*fleet, *chooser.Request, *chooser.Choice){
		"instead of asking again": func(_ *fleet, _ *chooser.Request, c *chooser.Choice) { c.Release(done(decision.EndCanceled)) },
		"before it asks again": func(f *fleet, req *chooser.Request, c *chooser.Choice) {
			c.Release(done(decision.EndYielded))
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			req.Attempt, req.Resumes = 1, c
			if _, err := f.chooser.Choose(ctx, req); !errors.Is(err, context.Canceled) {
				f.t.Errorf("Choose() = %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, yielding)
				defer f.live()()
				req := f.request(1, long)
				req.Yield = func() {}
				first := f.choose(req)
				second := f.choose(f.request(2, 1000))
				second.FirstToken()
				leave(f, req, first)
				third := f.choose(f.request(3, 20000))
				if third.Decision.Held > time.Second || third.Decision.Pick().Planned != 0 {
					t.Errorf("held for %s with %.2f s planned", third.Decision.Held, third.Decision.Pick().Planned)
				}
				second.Release(done(decision.EndCompleted))
				third.Release(done(decision.EndCompleted))
				f.empty()
			})
		})
	}
}

// Where its blocks are is of no use when that replica may not serve any more.
func TestWhoGaveWayGoesElsewhereWhenItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.Queue.MaxRequests, c.YieldRanks = 1, 1 })
		defer f.live()()
		f.replicas[1].State = replica.StateDraining
		req := f.request(1, long)
		req.Yield = func() {}
		first := f.choose(req)
		second := f.choose(f.request(2, 1000))
		f.replicas[0].State, f.replicas[1].State = replica.StateDraining, replica.StateReady
		first.Release(done(decision.EndYielded))
		req.Attempt, req.Resumes = 1, first
		resumed := f.choose(req)
		if resumed.Replica.ID != "r1" || first.Replica.ID != "r0" {
			t.Errorf("it began on %s and goes on on %s, want r0 and r1", first.Replica.ID, resumed.Replica.ID)
		}
		second.Release(done(decision.EndCompleted))
		resumed.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// However requests come, give way and leave, each ends once and nothing stays booked.
func TestGivingWayLosesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, yielding)
		stop := f.live()
		dice := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		yields, ended := 0, 0
		var all sync.WaitGroup
		for i := range 120 {
			n, pause, leaves := 500+dice.IntN(2000), dice.IntN(60_000), dice.IntN(10) == 0
			if i%4 == 0 {
				n = 20000 + dice.IntN(40000)
			}
			all.Go(func() {
				time.Sleep(time.Duration(pause) * time.Millisecond)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if leaves {
					time.AfterFunc(2*time.Second, cancel)
				}
				req := f.request(i, n)
				for {
					taken := make(chan struct{})
					req.Yield = sync.OnceFunc(func() { close(taken) })
					c, err := f.chooser.Choose(ctx, req)
					if err != nil {
						break
					}
					end := decision.EndCompleted
					select {
					case <-time.After(time.Duration(c.Decision.Pick().TTFT * float64(time.Second))):
						if !c.Begin() {
							end = decision.EndYielded
						}
					case <-taken:
						end = decision.EndYielded
					case <-ctx.Done():
						end = decision.EndCanceled
					}
					if end == decision.EndCompleted {
						c.FirstToken()
					}
					c.Release(done(end))
					if end != decision.EndYielded {
						break
					}
					mu.Lock()
					yields++
					mu.Unlock()
					req.Attempt++
					req.Resumes = c
				}
				mu.Lock()
				ended++
				mu.Unlock()
			})
		}
		all.Wait()
		if ended != 120 || yields == 0 || f.chooser.Waiting() != 0 {
			t.Errorf("%d of 120 ended, %d gave way, %d wait", ended, yields, f.chooser.Waiting())
		}
		// Nobody is awaited on any rank.
		for range f.replicas {
			c := f.choose(f.request(1000, 16))
			if p := c.Decision.Pick(); p.Planned != 0 || p.Yields != 0 {
				t.Errorf("rank %d is left with %.2f s planned and %.2f s that give way", p.Slot, p.Planned, p.Yields)
			}
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
		}
		stop()
		f.empty()
	})
}

// A request may end at the very moment at which it is asked to give way: the rank is kept for nobody then.
func TestWhoEndsWhileGivingWayIsNotAwaited(t *testing.T) {
	f := newFleet(t, 1, yielding)
	stop := f.live()
	defer stop()
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	yields := 0
	for i := range rounds {
		req := f.request(3*i, long)
		req.Yield = func() { yields++ } // by whoever chooses: this goroutine
		first := f.choose(req)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range i % 100 * 20 { // about as long as the other takes to be chosen
				runtime.Gosched()
			}
			first.Release(done(decision.EndCanceled))
		}()
		second := f.choose(f.request(3*i+1, 1000))
		<-ended
		second.Release(done(decision.EndCompleted))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		third, err := f.chooser.Choose(ctx, f.request(3*i+2, 16))
		cancel()
		if err != nil {
			t.Fatalf("round %d: the rank is kept for a request that has ended: %v", i, err)
		}
		third.Release(done(decision.EndCompleted))
	}
	t.Logf("%d of %d gave way", yields, rounds)
}
