package chooser_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = 16

// fleet is a chooser over n replicas of one rank each.
type fleet struct {
	t        *testing.T
	chooser  *chooser.Chooser
	index    *kvindex.Index
	book     *load.Book
	replicas []*replica.Replica
	mu       sync.Mutex
	outcomes []decision.Outcome
	ids      int
}

// outcomes is a booking.Record that takes the outcomes.
type outcomes func(decision.Outcome)

func (f outcomes) Decision(*decision.Decision) {}
func (f outcomes) Outcome(o decision.Outcome)  { f(o) }

// engineReports is a chooser.Reports.
type engineReports func(replica.Slot, time.Time, int, *chooser.Report) bool

func (f engineReports) Report(slot replica.Slot, now time.Time, prefilling int, to *chooser.Report) bool {
	return f(slot, now, prefilling, to)
}

func newFleet(t *testing.T, n int, change func(*chooser.Config, *chooser.Params)) *fleet {
	t.Helper()
	f := &fleet{t: t}
	f.index = kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	f.book = load.New(load.DefaultConfig(), load.Params{})
	cfg := chooser.DefaultConfig()
	params := chooser.Params{Index: f.index, Book: f.book, Seed: 1, Record: outcomes(func(o decision.Outcome) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.outcomes = append(f.outcomes, o)
	})}
	if change != nil {
		change(&cfg, &params)
	}
	f.chooser = chooser.New(cfg, params)
	for i := range n {
		slot := replica.Slot(i)
		r := &replica.Replica{ID: replica.ID(fmt.Sprintf("r%d", i)), State: replica.StateReady, Slots: []replica.Slot{slot}, Models: []replica.Model{{ID: "m"}}, BlockSize: block, Blocks: 40000}
		f.replicas = append(f.replicas, r)
		f.book.AddRank(slot)
		f.chooser.AddRank(slot, r, 0)
		if err := f.index.AddRank(slot, kvindex.RankInfo{BlockSize: block, Capacity: r.Blocks}); err != nil {
			t.Fatal(err)
		}
		f.index.SetState(slot, kvblock.FeedExact)
	}
	return f
}

// know teaches the ranks' speed, that of the built-in guess.
func (f *fleet) know() {
	models := map[replica.Rank]speed.Model{}
	for _, r := range f.replicas {
		models[replica.Rank{Replica: r.ID}] = speed.Model{Token: 1. / 8000, Bend: 50000, Overhead: 0.003, Base: 0.01, Load: 1, Samples: 20, Spread: 0.1}
	}
	f.chooser.Learned().ImportModels(models)
}

// tokens makes a prompt; equal numbers give equal prompts.
func tokens(number, n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(number*1_000_003 + i)
	}
	return list
}

// request asks for a prompt of n tokens.
func (f *fleet) request(number, n int) *chooser.Request {
	f.mu.Lock()
	f.ids++
	id := fmt.Sprintf("q%d", f.ids)
	f.mu.Unlock()
	hashes := blockhash.Chain(nil, tokens(number, n), block, blockhash.Namespace{})
	return &chooser.Request{
		Request: decision.Request{ID: id, Model: "m"},
		Pool:    chooser.Pool{Replicas: f.replicas},
		Prompt:  chooser.Prompt{PromptTokens: n, Hashes: func(int) []blockhash.Hash { return hashes }},
		Reply:   chooser.Reply{ExpectedOutput: 100},
	}
}

// holds makes a rank hold a prompt.
func (f *fleet) holds(slot replica.Slot, number, n int) {
	ids := tokens(number, n-n%block)
	names := make([]kvblock.EngineHash, len(ids)/block)
	for i := range names {
		names[i] = kvblock.EngineHash(number*100_000 + i + 1)
	}
	f.index.Store(slot, &kvblock.Stored{Hashes: names, Tokens: ids, BlockSize: block})
}

func (f *fleet) choose(req *chooser.Request) *chooser.Choice {
	f.t.Helper()
	c, err := f.chooser.Choose(context.Background(), req)
	if err != nil {
		f.t.Fatalf("Choose(%s) = %v", req.ID, err)
	}
	return c
}

// empty fails when anything is still booked.
func (f *fleet) empty() {
	f.t.Helper()
	if n := f.book.Live(); n != 0 {
		f.t.Errorf("%d reservations are left", n)
	}
	for _, r := range f.replicas {
		for _, slot := range r.Slots {
			if l := f.book.View(slot, time.Now()); l.InFlight != 0 || l.PrefillTokens != 0 || l.DecodeBlocks != 0 {
				f.t.Errorf("rank %d is left with %+v", slot, l)
			}
		}
	}
}

func done(end decision.End) chooser.Result {
	return chooser.ResultOf(end)
}

func TestGoesWhereThePrefixIs(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.holds(2, 7, 8192)
	c := f.choose(f.request(7, 8192))
	if c.Replica.ID != "r2" {
		t.Errorf("chose %s, want the one that holds the prompt", c.Replica.ID)
	}
	if got := c.Decision.Pick(); got.GPU != 8176 || got.Uncached != 16 {
		t.Errorf("overlap %d and uncached %d, want all blocks but the last, which is computed again", got.GPU, got.Uncached)
	}
	if _, same := selector.Recompute(c.Decision); !same {
		t.Error("the recorded decision does not recompute to the same choice")
	}
	c.Release(done(decision.EndCompleted))
	f.empty()
}

// 200 equal prompts at one moment spread as their cost says: many ranks, none with a pile. The clock stands still.
func TestIdenticalPromptsAtOnceDoNotHerd(t *testing.T) {
	for name, test := range map[string]struct {
		together bool
		most     int // on one rank
	}{
		"one by one": {false, 45},
		// A goroutine may be stopped between a booking and the belief that follows it, so that all others see prompts to compute
		// where the blocks are soon: the rank that held them before is then that much cheaper.
		"together": {true, 150},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { herd(t, test.together, test.most) })
		})
	}
}

func herd(t *testing.T, together bool, most int) {
	f := newFleet(t, 8, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 })
	f.holds(3, 1, 2048)
	// One rank would prefill them all at once; their decoding is what must spread.
	var wait sync.WaitGroup
	choices := make([]*chooser.Choice, 200)
	for i := range choices {
		req := f.request(1, 2560)
		req.ExpectedOutput = 0
		wait.Go(func() {
			c, err := f.chooser.Choose(context.Background(), req)
			if err != nil {
				t.Error(err)
			}
			choices[i] = c
		})
		if !together {
			wait.Wait()
		}
	}
	wait.Wait()
	count := map[replica.ID]int{}
	for _, c := range choices {
		count[c.Replica.ID]++
	}
	for id, n := range count {
		if n > most {
			t.Errorf("%s got %d of 200", id, n)
		}
	}
	if len(count) < 4 {
		t.Errorf("only %d of 8 replicas were used: %v", len(count), count)
	}
	for _, c := range choices {
		c.Release(done(decision.EndCanceled))
	}
	f.empty()
}

func TestEveryWayOutReleases(t *testing.T) {
	f := newFleet(t, 2, nil)
	for end := decision.EndCompleted; end <= decision.EndMoved; end++ {
		c := f.choose(f.request(int(end), 1000))
		if end%2 == 0 {
			c.FirstToken()
			c.FirstToken()
			c.Progress(40)
			c.Progress(20)
		}
		if !c.Release(done(end)) || c.Release(done(end)) {
			t.Errorf("%s: the first release counts and no other", end)
		}
		c.FirstToken()
		c.Progress(100)
	}
	f.empty()
	if len(f.outcomes) != int(decision.EndMoved)+1 {
		t.Errorf("%d outcomes, want one per request", len(f.outcomes))
	}
	for i, o := range f.outcomes {
		if o.End != decision.End(i) {
			t.Errorf("outcome %d is %s, want %s", i, o.End, decision.End(i))
		}
	}
}

func TestARetryMovesTheBooking(t *testing.T) {
	f := newFleet(t, 2, nil)
	req := f.request(1, 1000)
	first := f.choose(req)
	first.Release(done(decision.EndMoved))
	again := *req
	again.Attempt, again.Exclude = 1, []replica.ID{first.Replica.ID}
	second := f.choose(&again)
	if second.Replica.ID == first.Replica.ID {
		t.Errorf("the retry went to %s again", first.Replica.ID)
	}
	if v := second.Decision.List()[first.Slot].Veto; v != decision.VetoExcluded {
		t.Errorf("veto %q, want %q", v, decision.VetoExcluded)
	}
	second.Release(done(decision.EndCompleted))
	f.empty()
}

func TestNobodyLeft(t *testing.T) {
	f := newFleet(t, 3, nil)
	req := f.request(1, 100)
	req.Options.Denied = []replica.ID{"r0", "r1", "r2"}
	_, err := f.chooser.Choose(context.Background(), req)
	var none *chooser.NoReplica
	if !errors.As(err, &none) || none.RetryAfter <= 0 {
		t.Fatalf("Choose() = %v, want *NoReplica with a hint", err)
	}
	for _, c := range none.Decision.List() {
		if c.Veto != decision.VetoDenied {
			t.Errorf("%s: veto %q, want %q", c.Replica, c.Veto, decision.VetoDenied)
		}
	}
	f.empty()
}

func TestOptions(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.holds(0, 1, 4096)
	pin := func(o chooser.Options) *chooser.Request {
		req := f.request(1, 4096)
		req.Options, req.Booking = o, chooser.DryRun
		return req
	}
	if c := f.choose(pin(chooser.Options{Pinned: "r3", PinnedRank: -1})); c.Replica.ID != "r3" || c.Decision.Reason != decision.ReasonPinned {
		t.Errorf("pinned: %s for %q", c.Replica.ID, c.Decision.Reason)
	}
	if c := f.choose(pin(chooser.Options{Allowed: []replica.ID{"r1"}})); c.Replica.ID != "r1" {
		t.Errorf("allowed: %s", c.Replica.ID)
	}
	if c := f.choose(pin(chooser.Options{Policy: decision.RoundRobin})); c.Decision.Policy != decision.RoundRobin {
		t.Errorf("policy %q", c.Decision.Policy)
	}
	for _, bad := range []chooser.Options{{Policy: "x"}, {Weights: map[string]float64{"x": 1}}} {
		if _, err := f.chooser.Choose(context.Background(), pin(bad)); !errors.Is(err, chooser.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", bad, err)
		}
	}
	f.empty() // dry runs book nothing
}

func TestColdReplicasGetTraffic(t *testing.T) {
	f := newFleet(t, 4, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 })
	used := map[replica.ID]int{}
	for i := range 200 {
		c := f.choose(f.request(i%3, 4096))
		used[c.Replica.ID]++
		if i%2 == 0 {
			c.Release(done(decision.EndCompleted))
		}
	}
	if len(used) != 4 {
		t.Errorf("only %v were used", used)
	}
}

func TestLifecycleByID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		ctx, cancel := context.WithCancel(context.Background())
		var run sync.WaitGroup
		run.Go(func() { _ = f.chooser.Run(ctx) })
		run.Go(func() { _ = f.book.Run(ctx) })
		req := f.request(1, 1000)
		req.Lease = 30 * time.Second
		f.choose(req)
		for i, got := range []load.Outcome{
			f.chooser.PrefillCompleted(load.Key{ID: req.ID}), f.chooser.PrefillCompleted(load.Key{ID: req.ID}), f.chooser.ReportProgress(load.Key{ID: req.ID}, 40),
			f.chooser.ReportProgress(load.Key{ID: req.ID}, 40), f.chooser.ReportProgress(load.Key{ID: req.ID}, 10), f.chooser.PrefillCompleted(load.Key{ID: "nobody"}),
			f.chooser.Finish(load.Key{ID: req.ID}, done(decision.EndCompleted)), f.chooser.Finish(load.Key{ID: req.ID}, done(decision.EndCompleted)),
		} {
			want := []load.Outcome{load.Applied, load.Duplicate, load.Applied, load.Duplicate, load.Stale, load.Unknown, load.Applied, load.Ended}[i]
			if got != want {
				t.Errorf("call %d: %s, want %s", i, got, want)
			}
		}
		abandoned := f.request(2, 1000)
		abandoned.Lease = 30 * time.Second
		f.choose(abandoned)
		time.Sleep(45 * time.Second)
		synctest.Wait()
		f.mu.Lock()
		last := f.outcomes[len(f.outcomes)-1]
		f.mu.Unlock()
		if last.ID != abandoned.ID || last.End != decision.EndExpired {
			t.Errorf("last outcome %+v, want the abandoned one, expired", last)
		}
		cancel()
		run.Wait()
		f.empty()
	})
}

// Whoever has a lease reports the first token when it saw it, whatever the body of the request says of streaming.
func TestAReportedFirstTokenIsInTheRecord(t *testing.T) {
	for _, unstreamed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, nil)
			req := f.request(1, 1000)
			req.Lease, req.Unstreamed = time.Minute, unstreamed
			f.choose(req)
			time.Sleep(2 * time.Second)
			f.chooser.PrefillCompleted(load.Key{ID: req.ID})
			time.Sleep(time.Second)
			f.chooser.Finish(load.Key{ID: req.ID}, done(decision.EndCompleted))
			if last := f.outcomes[len(f.outcomes)-1]; last.TTFT != 2*time.Second || last.Duration != 3*time.Second {
				t.Errorf("unstreamed %v: %+v", unstreamed, last)
			}
		})
	}
}

func TestShadowDecidesAndDoesNotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes between the choices
		f := newFleet(t, 3, func(c *chooser.Config, _ *chooser.Params) { c.Shadow = decision.LeastRequests })
		f.holds(1, 1, 8192)
		idle := f.choose(f.request(50, 100))
		busy := f.choose(f.request(1, 8192)) // warm, and then not the least busy
		c := f.choose(f.request(1, 8192))
		s := c.Decision.Shadow
		if c.Replica.ID != "r1" || s == nil || s.Policy != decision.LeastRequests {
			t.Fatalf("served by %s, shadow %+v", c.Replica.ID, s)
		}
		if s.Agrees || s.Regret <= 0.5 {
			t.Errorf("shadow %+v: the least busy would have prefilled for about a second", s)
		}
		for _, c := range []*chooser.Choice{idle, busy, c} {
			c.Release(done(decision.EndCompleted))
		}
		f.empty()
	})
}

func TestPolicyPerModel(t *testing.T) {
	f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) {
		c.Models = map[string]settings.ModelConfig{"m": {Policy: decision.ConsistentHash}}
	})
	req := f.request(1, 100)
	req.Session = "s"
	home := f.choose(req).Replica.ID
	for range 9 { // one session pins ten of ten
		req := f.request(1, 100)
		req.Session = "s"
		if c := f.choose(req); c.Replica.ID != home || c.Decision.Policy != decision.ConsistentHash {
			t.Errorf("the session went to %s under %s, its home is %s", c.Replica.ID, c.Decision.Policy, home)
		}
	}
}

func TestPrefixAffinityIsFedByWhatWasRouted(t *testing.T) {
	f := newFleet(t, 4, func(c *chooser.Config, _ *chooser.Params) { c.Policy = decision.PrefixAffinity })
	ask := func(text string) *chooser.Choice {
		req := f.request(1, 100)
		req.Text = text
		c := f.choose(req)
		c.Release(done(decision.EndCompleted))
		return c
	}
	home := ask("a long conversation about routers").Replica.ID
	for range 5 {
		if got := ask("a long conversation about routers, continued").Replica.ID; got != home {
			t.Errorf("went to %s, the text is known to %s", got, home)
		}
	}
	ask("") // no key: never divides by zero
}
