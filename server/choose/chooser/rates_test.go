package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A router that begins to decide must not begin with the built-in guess.
func TestRatesPassFromOneRouterToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := newFleet(t, 2, nil), newFleet(t, 2, nil)
		for i := range 20 {
			c := old.choose(old.request(100+i, 8000))
			time.Sleep(100 * time.Millisecond)
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
			time.Sleep(100 * time.Millisecond)
		}
		models := old.chooser.Learned().ExportModels()
		if len(models) != 2 {
			t.Fatalf("%d models of two ranks", len(models))
		}
		if n := len(next.chooser.Learned().ExportModels()); n != 0 {
			t.Errorf("a router without requests exports %d models", n)
		}
		next.chooser.Learned().ImportModels(models)
		if n := len(next.chooser.Learned().ExportModels()); n != 0 {
			t.Errorf("a router exports %d models that it has imported", n)
		}
		was, now := old.chooser.Rates(), next.chooser.Rates()
		for i := range was {
			if now[i].TokensPerSecond != was[i].TokensPerSecond || now[i].Source != decision.SpeedLearned {
				t.Errorf("rank %d: %+v, want %+v", i, now[i], was[i])
			}
		}
		a, b := old.choose(old.request(7, 4000)), next.choose(next.request(7, 4000))
		if x, y := a.Decision.Pick().TTFT, b.Decision.Pick().TTFT; y < 0.9*x || y > 1.1*x {
			t.Errorf("the two predict %.4f and %.4f s", x, y)
		}
		a.Release(done(decision.EndCompleted))
		b.Release(done(decision.EndCompleted))
	})
}
