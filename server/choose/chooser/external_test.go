package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// own has every rank serve so many prompts of this process, one after the other, at 8,000 tokens per second.
func (f *fleet) own(n int) {
	for i := range n * len(f.replicas) {
		req := f.request(1000+i, 1000)
		req.Options.Pinned = f.replicas[i%len(f.replicas)].ID
		c := f.choose(req)
		time.Sleep(1000 * time.Second / 8000)
		c.FirstToken()
		c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
		time.Sleep(time.Second)
	}
}

// report has a caller outside of this process send a prompt to a rank and report its first token after a time.
func (f *fleet) report(slot, number, tokens int, tenant string, after time.Duration) {
	f.t.Helper()
	req := f.request(number, tokens)
	req.Lease, req.Reports, req.Tenant, req.Options.Pinned = time.Minute, true, tenant, f.replicas[slot].ID
	c := f.choose(req)
	time.Sleep(after)
	if out := f.chooser.PrefillCompleted(load.Key{Tenant: tenant, ID: req.ID}); out != load.Applied {
		f.t.Fatalf("the report: %v", out)
	}
	f.chooser.Finish(load.Key{Tenant: tenant, ID: req.ID}, chooser.Result{End: decision.EndCompleted, OutputTokens: 1, PromptTokens: -1, CachedTokens: -1})
	if c.Slot != replica.Slot(slot) {
		f.t.Fatalf("sent to rank %d", c.Slot)
	}
	time.Sleep(time.Second)
}

func (f *fleet) rate(slot int) float64 { return f.chooser.Rates()[slot].TokensPerSecond }

// A report that came 0.15 s late halved the rate of a rank, and 60 equal prompts went to the other one.
func TestOneReportMovesNoRank(t *testing.T) {
	for _, own := range []int{0, 2, 8} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 })
			f.own(own)
			before := f.rate(0)
			f.report(0, 1, 1000, "team", 275*time.Millisecond)
			if after := f.rate(0); after < 0.95*before {
				t.Errorf("%d own prompts: %.0f tokens/s before the report, %.0f after it", own, before, after)
			}
			count := map[int]int{}
			for range 60 {
				count[int(f.choose(f.request(5, 4000)).Slot)]++
			}
			if count[0] < 20 || count[1] < 20 {
				t.Errorf("%d own prompts: 60 equal prompts went %d:%d", own, count[0], count[1])
			}
		})
	}
}

// Many reports do not outweigh what the router has seen itself.
func TestReportsDoNotOutweighOwnFirstTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 })
		f.own(5)
		before := f.rate(0)
		for i := range 100 {
			f.report(0, i, 1000, "team", 3*time.Second)
		}
		if after := f.rate(0); after < 0.95*before || after > 1.05*before {
			t.Errorf("%.0f tokens/s before 100 late reports, %.0f after them", before, after)
		}
		if r := f.chooser.Rates()[0]; r.Source != decision.SpeedLearned {
			t.Errorf("its source is %s", r.Source)
		}
	})
}

// Where all requests are sent by callers, their reports teach, and a few wrong ones among them change nothing.
func TestReportsTeachWhereNothingElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		for i := range 60 {
			after := 2000 * time.Second / 32000
			if i%4 == 3 {
				after += 2 * time.Second
			}
			f.report(0, i, 2000, "team", after)
		}
		if got := f.rate(0); got < 32000*0.7 || got > 32000*1.3 {
			t.Errorf("%.0f tokens/s, want 32,000", got)
		}
	})
}

func TestReportedStepsTeachOnlyTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		step := func() float64 { return f.chooser.Rates()[0].StepTime }
		before := step()
		for i := range 8 {
			req := f.request(i, 1000)
			req.Lease, req.Reports = time.Minute, true
			c := f.choose(req)
			time.Sleep(125 * time.Millisecond)
			f.chooser.PrefillCompleted(load.Key{ID: req.ID})
			for n := 8; n <= 64; n += 8 {
				time.Sleep(8 * 100 * time.Millisecond)
				f.chooser.ReportProgress(load.Key{ID: req.ID}, n)
			}
			c.Release(done(decision.EndCompleted))
			if i == 0 && step() != before {
				t.Errorf("one request's reports make steps of %.3f s out of %.3f", step(), before)
			}
		}
		if after := step(); after < 0.07 || after > 0.13 {
			t.Errorf("steps of %.3f s after eight requests, want 0.1", after)
		}
	})
}
