package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Bookings whose requests the engine does not show lose their weight in about a second, and
// nobody waits for them; a report books them again.
func TestWaits14PhantomsLoseTheirWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := newFleet(t, 2, func(_ *chooser.Config, p *chooser.Params) { p.Vitals = e.vitals })
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second)
		var unsent []*chooser.Choice
		for i := range 2 {
			req := f.request(i, 100_000) // a quarter of a minute each
			req.Lease, req.Reports = time.Minute, true
			unsent = append(unsent, f.choose(req))
		}
		began := time.Now()
		c := f.choose(f.request(10, 200))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a short request waited %s for requests that were never sent", took)
		}
		c.Release(done(decision.EndCompleted))
		time.Sleep(time.Second) // the other rank's may be found out later
		if l := f.book.View(unsent[0].Slot, time.Now()); l.InFlight != 0 || l.PrefillTokens != 0 || l.DecodeBlocks != 0 {
			t.Errorf("a phantom weighs %+v", l)
		}
		if out := f.chooser.PrefillCompleted(load.Key{ID: unsent[0].Decision.ID}); out != load.Applied {
			t.Errorf("a late report: %s", out)
		}
		if l := f.book.View(unsent[0].Slot, time.Now()); l.InFlight != 1 || l.Prefilling != 0 || l.DecodeBlocks == 0 {
			t.Errorf("reported on, it weighs %+v", l)
		}
		if out := f.chooser.ReportProgress(load.Key{ID: unsent[1].Decision.ID}, 5); out != load.Applied {
			t.Errorf("late progress: %s", out)
		}
		for _, c := range unsent {
			c.Release(done(decision.EndCompleted))
		}
		f.empty()
	})
}

// What the engine shows keeps its weight, and so does what it cannot show yet.
func TestWaits14RequestsThatTheEngineHasKeepTheirWeight(t *testing.T) {
	for name, c := range map[string]struct {
		engine    engineState
		sent, own int // bookings, and requests of this process
		left      int
	}{
		"all are there":                    {engineState{requests: 3}, 3, 0, 3},
		"one is missing":                   {engineState{requests: 2}, 3, 0, 2},
		"others send requests too":         {engineState{requests: 9}, 3, 0, 3},
		"this process has its own":         {engineState{requests: 2}, 2, 2, 0},
		"of an engine that counts nothing": {engineState{blind: true}, 2, 0, 2},
		"of one that does not answer":      {engineState{stopped: true}, 2, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngines(1)
				f := newFleet(t, 1, func(c *chooser.Config, p *chooser.Params) { c.HoldAbove, p.Vitals = 0, e.vitals })
				defer f.running(t.Context())()
				time.Sleep(3 * time.Second)
				e.set(0, func(s *engineState) { *s = c.engine; s.stoppedAt = time.Now() })
				for i := range c.own {
					f.choose(f.request(100+i, 20_000))
				}
				for i := range c.sent {
					req := f.request(i, 20_000)
					req.Lease, req.Reports = time.Minute, true
					f.choose(req)
				}
				time.Sleep(2500 * time.Millisecond)
				if got := f.book.View(0, time.Now()).InFlight - c.own; got != c.left {
					t.Errorf("%d of %d bookings count, want %d", got, c.sent, c.left)
				}
			})
		})
	}
}
