package chooser_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Fresh prompts on an idle fleet of equals: 40 of 40 went to one replica.
func TestFreshPromptsSpreadOverAnIdleFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, nil)
		count := map[int]int{}
		for i := range 200 {
			c := f.choose(f.request(i, 2000))
			count[int(c.Slot)]++
			time.Sleep(300 * time.Millisecond)
			c.FirstToken()
			time.Sleep(time.Second)
			c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 50})
			time.Sleep(20 * time.Second)
		}
		for slot := range 4 {
			if count[slot] < 30 || count[slot] > 70 {
				t.Errorf("replica %d got %d of 200 prompts, want about 50", slot, count[slot])
			}
		}
		f.empty()
	})
}

// A first token that waits for KV memory says nothing of the engine's speed: a rank with full memory was taken for one that is many times as slow, and got
// nothing for a minute.
func TestAWaitForMemoryTeachesNoSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		small := *f.replicas[0]
		small.Blocks = 8000 / block
		f.replicas[0] = &small
		f.know()
		long := f.request(0, 7000)
		long.ExpectedOutput = 900
		writing := f.choose(long)
		time.Sleep(7 * time.Second / 8)
		writing.FirstToken()
		for i := range 20 {
			req := f.request(i+1, 2000)
			req.NoQueue = true
			c := f.choose(req)
			if i == 0 && c.Decision.Pick().Crowding == 0 {
				t.Fatal("the rank has room for the prompt")
			}
			time.Sleep(20 * time.Second)
			c.FirstToken()
			c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
		}
		writing.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 900})
		if r := f.chooser.Rates()[0]; math.Abs(r.TokensPerSecond/8000-1) > 0.1 {
			t.Errorf("%.0f tokens/s (%s), want 8,000", r.TokensPerSecond, r.Source)
		}
		f.empty()
	})
}

// Prompts scored by the known beginning of a conversation never taught, so that ranks that serve
// chats kept the prior for ever.
func TestEstimatedPromptsTeach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		for i := range 40 {
			req := f.request(i, 4000)
			req.Estimated = true
			c := f.choose(req)
			time.Sleep(4000 * time.Second / 64000)
			c.FirstToken()
			c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
			time.Sleep(time.Second)
		}
		for _, r := range f.chooser.Rates() {
			if math.Abs(r.TokensPerSecond/64000-1) > 0.25 || r.Source != decision.SpeedLearned {
				t.Errorf("%s: %.0f tokens/s (%s), want 64,000", r.Replica, r.TokensPerSecond, r.Source)
			}
		}
	})
}

// First tokens that leave one engine step microseconds apart.
func TestFirstTokensOfOneStepTeachTheirSum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 })
		for i := range 60 {
			var choices []*chooser.Choice
			for j := range 4 {
				choices = append(choices, f.choose(f.request(4*i+j, 1000)))
			}
			time.Sleep(4000 * time.Second / 8000)
			for _, c := range choices {
				c.FirstToken()
				time.Sleep(200 * time.Microsecond)
				c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
			}
			time.Sleep(time.Second)
		}
		if r := f.chooser.Rates()[0]; math.Abs(r.TokensPerSecond/8000-1) > 0.15 {
			t.Errorf("%.0f tokens/s, want 8,000", r.TokensPerSecond)
		}
	})
}

// Steps that carried the prefill of another router's requests were learned as decode steps of 0.3 s, and prompts as
// all but free: four routers in front of eight engines were eight times as slow as they had to be.
func TestStepsOfAnEngineThatOthersUseTeachNothing(t *testing.T) {
	for _, foreign := range []float64{0, 4} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, func(_ *chooser.Config, p *chooser.Params) {
				p.Reports = engineReports(func(_ replica.Slot, _ time.Time, _ int, to *chooser.Report) bool {
					*to = chooser.Report{Foreign: foreign}
					return true
				})
			})
			before := f.chooser.Rates()[0].StepTime
			for i := range 20 {
				c := f.choose(f.request(i, 1000))
				time.Sleep(1000 * time.Second / 8000)
				c.FirstToken()
				for n := 8; n <= 64; n += 8 {
					time.Sleep(8 * 300 * time.Millisecond)
					c.Progress(n)
				}
				c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 64})
			}
			after := f.chooser.Rates()[0].StepTime
			if foreign == 0 && math.Abs(after/0.3-1) > 0.2 {
				t.Errorf("an engine of its own: steps of %.3f s, want 0.3", after)
			}
			if foreign > 0 && after > 2*before {
				t.Errorf("a shared engine: steps of %.3f s, %.3f before", after, before)
			}
		})
	}
}

func TestUnreachableTargetsAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) {
			c.Objective = decision.ObjectiveSLO
			c.SLO.TTFT = 2 * time.Second
		})
		for i := range 30 { // so that the speed is known
			c := f.choose(f.request(i, 4000))
			time.Sleep(500 * time.Millisecond)
			c.FirstToken()
			c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
			time.Sleep(time.Second)
		}
		refused := func(what string, req *chooser.Request) {
			t.Helper()
			_, err := f.chooser.Choose(context.Background(), req)
			var refused *chooser.Refused
			if !errors.As(err, &refused) || refused.Cause != "target" || refused.RetryAfter < time.Second {
				t.Fatalf("%s: %v", what, err)
			}
		}
		long := f.request(100, 80000) // ten seconds and more
		long.Options.Targets.TTFT = 2 * time.Second
		refused("80,000 tokens within the 2 s that the request asks for", long)
		// The model's own target: it is served while the fleet has room, for the sake of those that come back to its prefix.
		c := f.choose(f.request(101, 80000))
		c.Release(chooser.Result{End: decision.EndCanceled})
		for i := range 60 {
			c := f.choose(f.request(200+i, 8000))
			time.Sleep(time.Second)
			c.FirstToken()
			c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
			long := f.request(300+i, 8000)
			long.Options.Targets.TTFT = time.Hour
			other := f.choose(long)
			other.FirstToken()
			other.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
		}
		refused("80,000 tokens within 2 s, on a busy fleet", f.request(102, 80000))
		long = f.request(103, 80000)
		long.Options.Targets.TTFT = time.Minute
		c = f.choose(long)
		if c.Decision.Objective != decision.ObjectiveSLO || c.Decision.Targets.TTFT != time.Minute {
			t.Errorf("decision %+v", c.Decision)
		}
		c.Release(chooser.Result{End: decision.EndCanceled})
		f.empty()
	})
}

func TestRequestsMayHaveAnObjectiveOfTheirOwn(t *testing.T) {
	f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.Weights = map[string]float64{"congestion": 2} })
	for i, tt := range []struct {
		own          decision.Objective
		targets      decision.Targets
		want         decision.Objective
		interference float64
	}{
		{"", decision.Targets{}, decision.ObjectiveAnswer, 0.24},
		{decision.ObjectiveTTFT, decision.Targets{}, decision.ObjectiveTTFT, 0.04},
		{decision.ObjectiveCompletion, decision.Targets{}, decision.ObjectiveCompletion, 1.08},
		{decision.ObjectiveCompletion, decision.Targets{TTFT: time.Minute}, decision.ObjectiveSLO, 0.24},
	} {
		req := f.request(i, 400)
		req.Options.Objective, req.Options.Targets = tt.own, tt.targets
		c := f.choose(req)
		if d := c.Decision; d.Objective != tt.want || math.Abs(d.Params.Interference-tt.interference) > 1e-9 || d.Params.Congestion != 2 {
			t.Errorf("asked for %q with targets %v: %s, interference %v, congestion %v", tt.own, tt.targets, d.Objective, d.Params.Interference, d.Params.Congestion)
		}
		c.Release(chooser.Result{End: decision.EndCanceled})
	}
}

// Two idle engines that differ by the noise of their samples: 199 of 200 prompts went to the one that looked a little faster.
func TestLightLoadIsSpreadOverEqualsThatLookAlike(t *testing.T) {
	for _, tt := range []struct {
		name        string
		token, step float64 // of the second replica over the first one's
		least, most int
	}{
		{"prefill differs by 8 %", 1.08, 1, 70, 130},
		{"steps differ by 1 ms", 1, 1.1, 70, 130},
		{"three times as slow", 3, 3, 0, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2, nil)
			models := map[replica.Rank]speed.Model{}
			for i, r := range f.replicas {
				m := speed.Model{Token: 1. / 20000, Bend: 50000, Overhead: 0.003, Base: 0.01, Load: 1, Samples: 20, Steps: 20, Spread: 0.02}
				if i == 1 {
					m.Token, m.Base = m.Token*tt.token, m.Base*tt.step
				}
				models[replica.Rank{Replica: r.ID}] = m
			}
			f.chooser.Learned().ImportModels(models)
			second := 0
			for i := range 200 {
				req := f.request(i, 1000)
				req.Unstreamed = true // nothing shows another speed
				c := f.choose(req)
				if c.Slot == 1 {
					second++
				}
				time.Sleep(time.Second)
				c.Release(chooser.Result{End: decision.EndCanceled})
				time.Sleep(10 * time.Second)
			}
			if second < tt.least || second > tt.most {
				t.Errorf("%s: %d of 200 prompts went to the second replica, want %d to %d", tt.name, second, tt.least, tt.most)
			}
			f.empty()
		})
	}
}
