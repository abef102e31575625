package chooser_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// withRoles makes the fleet's replicas NIXL engines with these roles; an empty role leaves one without a connector.
func (f *fleet) withRoles(roles ...string) {
	for i, role := range roles {
		if role != "" {
			f.replicas[i].Labels = map[string]string{replica.LabelConnector: "nixl", replica.LabelRole: role}
		}
	}
}

// splittable asks for a prompt that the caller can have split.
func (f *fleet) splittable(number, n int) *chooser.Request {
	req := f.request(number, n)
	req.Splittable, req.NoQueue = true, true
	return req
}

// decodes gives a rank answers to write, until end.
func (f *fleet) decodes(id replica.ID, n int) (end func()) {
	f.t.Helper()
	var all []*chooser.Choice
	for i := range n {
		req := f.request(1000+i, 64)
		req.NoQueue, req.Options.Pinned, req.Options.PinnedRank = true, id, -1
		c := f.choose(req)
		c.FirstToken()
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			c.Release(done(decision.EndCanceled))
		}
	}
}

func TestSplitBooksBothRanksAndReleasesEachOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		f.withRoles("prefill", "decode")
		end := f.decodes("r1", 20)
		before := f.book.View(1, time.Now())
		c := f.choose(f.splittable(1, 32000))
		w := c.Decision.Split()
		if w == nil || c.Prefill() == nil || c.Prefill().Replica.ID != "r0" || c.Replica.ID != "r1" {
			t.Fatalf("not split between r0 and r1: %+v on %s", c.Decision.Ways, c.Replica.ID)
		}
		p, d := f.book.View(0, time.Now()), f.book.View(1, time.Now())
		if p.InFlight != 1 || p.Prefilling != 1 || p.PrefillTokens < 31000 || p.PrefillTime < time.Second {
			t.Errorf("the rank that prefills has %+v", p)
		}
		if d.InFlight != 21 || d.PrefillTokens != 0 || d.PrefillTime != 0 || d.DecodeBlocks <= before.DecodeBlocks {
			t.Errorf("the rank that decodes has %+v", d)
		}
		time.Sleep(5 * time.Second)
		if d = f.book.View(1, time.Now()); d.Overdue != 0 {
			t.Errorf("the rank that decodes is overdue by %v while another one prefills", d.Overdue)
		}
		c.Prefill().FirstToken()
		if p = f.book.View(0, time.Now()); p.InFlight != 1 || p.Prefilling != 0 || p.DecodeBlocks == 0 {
			t.Errorf("the blocks that wait to be read are not booked: %+v", p)
		}
		c.Sent()
		c.FirstToken()
		for range 2 {
			c.Prefill().Release(done(decision.EndCompleted))
		}
		if p, d = f.book.View(0, time.Now()), f.book.View(1, time.Now()); p.InFlight != 0 || p.DecodeBlocks != 0 || d.InFlight != 21 {
			t.Errorf("after the release of the first leg: %+v and %+v", p, d)
		}
		c.Release(done(decision.EndCompleted))
		c.Release(done(decision.EndCompleted))
		if len(f.outcomes) != 1 {
			t.Errorf("%d outcomes for one request", len(f.outcomes))
		}
		end()
		f.empty()
	})
}

// A choice that is given back before its prompt is computed, as by a caller that has left, books neither rank any more.
func TestRankThatPrefillsIsReleasedWithItsRequest(t *testing.T) {
	for _, computed := range []bool{false, true} {
		f := newFleet(t, 2, nil)
		f.know()
		f.withRoles("prefill", "decode")
		end := f.decodes("r1", 20)
		c := f.choose(f.splittable(1, 32000))
		if computed {
			c.Prefill().FirstToken()
		}
		c.Release(done(decision.EndHandedOver))
		if p := f.book.View(0, time.Now()); (p.InFlight == 1) != computed {
			t.Errorf("computed %v: the rank that prefills has %d requests", computed, p.InFlight)
		}
		c.Prefill().Release(done(decision.EndCompleted))
		end()
		f.empty()
	}
}

// An engine that has computed prompts for others has nothing to do until they are read, however long the other engine is busy.
func TestRankThatHasComputedForOthersDoesNotStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := watched(t, 2, e)
		defer f.running(t.Context())()
		f.know()
		f.withRoles("prefill", "decode")
		end := f.decodes("r1", 20)
		time.Sleep(3 * time.Second) // both were seen to count
		taken := 0
		var list []*chooser.Choice
		for i := range 8 {
			req := f.splittable(1+i, 32000)
			req.Movable, req.Abandon, req.Options.Weights = true, func(chooser.Withdrawal) { taken++ }, map[string]float64{"split_bonus": 1000}
			c := f.choose(req)
			if c.Prefill() == nil || c.Prefill().Replica.ID != "r0" {
				t.Fatalf("request %d is not split: %+v", i, c.Decision.Ways)
			}
			list = append(list, c)
		}
		time.Sleep(2 * time.Second)
		for _, c := range list {
			c.Prefill().FirstToken()
			c.Sent()
		}
		e.set(0, func(s *engineState) { s.hangs = true }) // it is idle
		time.Sleep(8 * time.Second)
		if taken != 0 {
			t.Errorf("%d requests were withdrawn", taken)
		}
		if _, veto := f.whither(100); veto == decision.VetoStalled {
			t.Error("the rank that prefills counts as stalled")
		}
		for _, c := range list {
			c.FirstToken()
			c.Prefill().Release(done(decision.EndCompleted))
			c.Release(done(decision.EndCompleted))
		}
		end()
		f.empty()
	})
}

func TestRolesNarrowTheChoice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		roles  []string
		change func(*fleet, *chooser.Request)
		want   replica.ID
		split  bool
	}{
		{name: "no connector", roles: []string{"", ""}, want: "r0"},
		{name: "short prompts do not go to one that prefills", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.PromptTokens = 64 }, want: "r1"},
		{name: "nor those that cannot be split", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Splittable = false }, want: "r1"},
		{name: "nor those of another policy", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Options.Policy = decision.LeastRequests }, want: "r1"},
		{name: "unless it is the only one left", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Exclude = []replica.ID{"r1"} }, want: "r0"},
		{name: "or pinned", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Options.Pinned, r.Options.PinnedRank = "r0", -1 }, want: "r0"},
		{name: "one that prefills is excluded", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Exclude = []replica.ID{"r0"} }, want: "r1"},
		{name: "one group", roles: []string{"prefill", "decode"}, want: "r1", split: true},
		{name: "two groups", roles: []string{"prefill", "decode"}, change: func(f *fleet, _ *chooser.Request) { f.replicas[0].Labels[replica.LabelGroup] = "other" }, want: "r1"},
		{name: "with a lease, another process sends it", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Lease = time.Minute }, want: "r1"},
		{name: "a dry run shows the way", roles: []string{"prefill", "decode"}, change: func(_ *fleet, r *chooser.Request) { r.Booking = chooser.DryRun }, want: "r1", split: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, len(tt.roles), nil)
			f.know()
			f.withRoles(tt.roles...)
			defer f.empty()
			if tt.split {
				defer f.decodes("r1", 20)()
			}
			req := f.splittable(1, 32000)
			if tt.roles[0] == "" {
				req.Options.Pinned, req.Options.PinnedRank = "r0", -1
			}
			if tt.change != nil {
				tt.change(f, req)
			}
			c := f.choose(req)
			if c.Replica.ID != tt.want || (c.Decision.Split() != nil) != tt.split {
				t.Errorf("went to %s, split %v, want %s and %v: %+v", c.Replica.ID, c.Decision.Split() != nil, tt.want, tt.split, c.Decision.Ways)
			}
			if c.Booked() && (c.Prefill() != nil) != tt.split {
				t.Errorf("the Choice of the rank that prefills is %v", c.Prefill())
			}
			if c.Prefill() != nil {
				c.Prefill().Release(done(decision.EndCanceled))
			}
			c.Release(done(decision.EndCompleted))
		})
	}
}

// On an idle pool in which each replica may do both, a split gains nothing. The record has its price all the same.
func TestIdlePoolOfBothIsNotSplit(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.know()
	f.withRoles("both", "both")
	c := f.choose(f.splittable(1, 32000))
	if c.Decision.Split() != nil || len(c.Decision.Ways) != 2 || c.Decision.Ways[1].Cost <= c.Decision.Ways[0].Cost {
		t.Errorf("%+v", c.Decision.Ways)
	}
	c.Release(done(decision.EndCompleted))
	f.empty()
}

// The clock shows what a transfer took: the next prediction follows it, and the speed of the rank that decodes is no worse for it.
func TestTransfersAreLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		f.withRoles("prefill", "decode")
		var last float64
		end := f.decodes("r1", 20)
		for i := range 30 {
			c := f.choose(f.splittable(i, 32000))
			w := c.Decision.Split()
			if w == nil {
				t.Fatalf("request %d was not split: %+v", i, c.Decision.Ways)
			}
			last = w.Transfer
			time.Sleep(time.Duration(w.Compute * float64(time.Second)))
			c.Prefill().FirstToken()
			c.Sent()
			time.Sleep(400*time.Millisecond + 13*time.Millisecond) // the transfer, a step and the overhead
			c.FirstToken()
			c.Prefill().Release(done(decision.EndCompleted))
			c.Release(done(decision.EndCompleted))
		}
		if math.Abs(last-0.4) > 0.04 {
			t.Errorf("predicts a transfer of %.3f s, it takes 0.4 s", last)
		}
		for _, rate := range f.chooser.Rates() {
			if rate.Replica == "r1" && (rate.TokensPerSecond < 7000 || rate.TokensPerSecond > 9000) {
				t.Errorf("the rank that decodes is taken to prefill %.0f tokens/s", rate.TokensPerSecond)
			}
		}
		end()
		f.empty()
	})
}

// Many requests at once: nothing is left booked, whichever of them are split, given up or completed.
func TestSplitsAtOnceLeaveNothingBooked(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.know()
	f.withRoles("prefill", "both", "decode", "")
	var wait sync.WaitGroup
	for i := range 200 {
		req := f.splittable(i%20, 16000)
		wait.Go(func() {
			c, err := f.chooser.Choose(context.Background(), req)
			if err != nil {
				if !errors.As(err, new(*chooser.Refused)) {
					t.Error(err)
				}
				return
			}
			if p := c.Prefill(); p != nil {
				if p.Replica.ID == c.Replica.ID || p.Replica.ID == "r2" || p.Replica.ID == "r3" || c.Replica.ID == "r0" || c.Replica.ID == "r3" {
					t.Errorf("prefills on %s for %s", p.Replica.ID, c.Replica.ID)
				}
				if i%3 > 0 {
					p.FirstToken()
					c.Sent()
				}
				if i%3 > 1 {
					c.FirstToken()
				}
				p.Release(done(decision.EndCompleted))
			}
			c.Release(done(decision.EndCompleted))
		})
	}
	wait.Wait()
	f.empty()
}

// The hold queue looks at the rank that computes the prompt: while that one has enough to do, a request waits.
func TestSplitWaitsForTheRankThatPrefills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		f.withRoles("prefill", "decode")
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = f.chooser.Run(ctx) })
		var held []*chooser.Choice
		var mu sync.Mutex
		for i := range 4 {
			req := f.splittable(i, 32000)
			req.NoQueue = false
			f.chooser.Submit(req, time.Time{}, func(c *chooser.Choice, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				held = append(held, c)
			})
		}
		synctest.Wait()
		mu.Lock()
		sent := len(held)
		mu.Unlock()
		if sent == 0 || sent == 4 {
			t.Errorf("%d of 4 requests were sent at once", sent)
		}
		for range 4 {
			mu.Lock()
			list := held
			held = nil
			mu.Unlock()
			for _, c := range list {
				if p := c.Prefill(); p != nil {
					p.FirstToken()
					p.Release(done(decision.EndCompleted))
				}
				c.FirstToken()
				c.Release(done(decision.EndCompleted))
			}
			time.Sleep(time.Second)
		}
		stop()
		running.Wait()
		f.empty()
	})
}

func ExampleChoice_Prefill() {
	var c chooser.Choice // of a request that one rank serves
	fmt.Println(c.Prefill() == nil)
	// Output: true
}
