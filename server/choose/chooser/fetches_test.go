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

// counting is a fleet with engines that count the tokens that they fetch.
type counting struct {
	*fleet
	fetched map[replica.Slot]uint64
}

func newCounting(t *testing.T, n int) *counting {
	c := &counting{fetched: map[replica.Slot]uint64{}}
	c.fleet = newFleet(t, n, func(_ *chooser.Config, p *chooser.Params) {
		p.Reports = engineReports(func(slot replica.Slot, now time.Time, _ int, to *chooser.Report) bool {
			*to = chooser.Report{At: now, KVUsage: -1, Fetches: true, Fetched: c.fetched[slot]}
			return true
		})
	})
	c.know()
	return c
}

// An engine without cached tokens in its answers shows by its counters alone that it does not find what its events name.
func TestATierIsJudgedByTheEnginesCountersWhereAnswersSayNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		found     float64
		low, high uint32
	}{
		"all is found": {1, 8000, 8000}, "half": {0.5, 3000, 5600}, "nothing": {0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newCounting(t, 2)
			pinned := func(number int) *chooser.Request {
				req := f.streamed(number, 8001)
				req.Options.Pinned, req.Options.PinnedRank = "r0", -1
				return req
			}
			for number := range 80 {
				f.keeps(0, number, 8000, kvblock.TierCPU)
				c := f.choose(pinned(number))
				f.fetched[0] += uint64(tt.found * 8000)
				answered(c, time.Second, 8001, -1)
				time.Sleep(2 * time.Second)
			}
			f.keeps(0, 100, 8000, kvblock.TierCPU)
			c := f.choose(pinned(100))
			if got := c.Decision.Pick().Loadable; got < tt.low || got > tt.high {
				t.Errorf("%s: %d of 8000 tokens are counted on, want %d to %d", name, got, tt.low, tt.high)
			}
			c.Release(done(decision.EndCanceled))
		})
	}
}

// An engine that computes what it should have read, without a word, decodes for no other one for a while.
func TestARankThatDoesNotReadItsTransfersGetsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCounting(t, 2)
		f.withRoles("prefill", "decode")
		end := f.decodes("r1", 20)
		defer end()
		ask := func(number int, read bool) (split bool) {
			c := f.choose(f.splittable(number, 32000))
			w := c.Decision.Split()
			if w == nil {
				c.Release(done(decision.EndCanceled))
				return false
			}
			c.Prefill().FirstToken()
			c.Prefill().Release(done(decision.EndCompleted))
			c.Sent()
			time.Sleep(time.Second)
			if read {
				f.fetched[1] += uint64(w.Moved)
			}
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
			time.Sleep(time.Second)
			return true
		}
		for number := range 20 {
			if !ask(number, true) {
				t.Fatalf("request %d is not split", number)
			}
		}
		lost := 0
		for number := 20; number < 40 && ask(number, false); number++ {
			lost++
		}
		if lost < 1 || lost > 8 {
			t.Errorf("%d splits are believed", lost)
		}
		time.Sleep(2 * time.Minute)
		if !ask(50, true) {
			t.Error("the rank is left out for good")
		}
	})
}
