package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A request keeps the settings that it began with, over its retries; the next one has the new ones.
func TestARequestKeepsItsSettings(t *testing.T) {
	var config chooser.Config
	f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) {
		c.Policy, c.Shadow = decision.PredictedTTFT, decision.Random
		config = *c
	})
	began := f.chooser.Settings()
	next := config
	next.Policy, next.Shadow = decision.RoundRobin, ""
	next.Models = map[string]settings.ModelConfig{"special": {Policy: decision.LeastRequests, Weights: map[string]float64{"overlap_credit": 0.5}}}
	next.Ring.VirtualNodes = 7 // it needs a restart, and is none of Update's business
	if err := f.chooser.Update(next); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		settings *chooser.Settings
		model    string
		want     decision.Policy
		shadowed bool
	}{
		{began, "", decision.PredictedTTFT, true},
		{nil, "", decision.RoundRobin, false},
		{f.chooser.Settings(), "", decision.RoundRobin, false},
		{nil, "special", decision.LeastRequests, false},
		{began, "special", decision.PredictedTTFT, true},
	} {
		req := f.request(i, 100)
		req.Settings = c.settings
		if c.model != "" {
			req.Served, req.Model = req.Model, c.model
		}
		choice := f.choose(req)
		if d := choice.Decision; d.Policy != c.want || (d.Shadow != nil) != c.shadowed {
			t.Errorf("%d: policy %s, shadow %v; want %s, %t", i, d.Policy, d.Shadow, c.want, c.shadowed)
		}
		choice.Release(done(decision.EndCompleted))
	}
	if c := f.chooser.Config(); c.Ring != config.Ring || c.Policy != decision.RoundRobin {
		t.Errorf("in force is %+v", c)
	}
	bad := next
	bad.Policy, bad.Queue.MaxRequests = "nonsense", 0
	if err := f.chooser.Update(bad); err == nil || f.chooser.Config().Policy != decision.RoundRobin {
		t.Errorf("wrong settings: error %v, in force %s", err, f.chooser.Config().Policy)
	}
}

// Those who wait in the hold queue when it is turned off go at once.
func TestTurningTheHoldQueueOffReleasesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var config chooser.Config
		f := newFleet(t, 1, func(c *chooser.Config, _ *chooser.Params) { config = *c })
		defer f.running(t.Context())()
		busy := f.choose(f.request(0, 200_000))
		got := make(chan *chooser.Choice, 1)
		f.chooser.Submit(f.request(1, 200_000), time.Time{}, func(c *chooser.Choice, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- c
		})
		synctest.Wait()
		if f.chooser.Waiting() != 1 {
			t.Fatalf("%d wait, want the second", f.chooser.Waiting())
		}
		config.HoldAbove = 0
		if err := f.chooser.Update(config); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := <-got
		if waited := time.Since(began); c == nil || waited > 100*time.Millisecond {
			t.Errorf("it went after %s", waited)
		}
		c.Release(done(decision.EndCompleted))
		busy.Release(done(decision.EndCompleted))
		f.empty()
	})
}
