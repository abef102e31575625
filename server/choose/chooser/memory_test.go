package chooser_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// TestADecisionDoesNotKeepItsRequest: decisions are remembered by the thousand, and a Request leads to the body of its caller.
func TestADecisionDoesNotKeepItsRequest(t *testing.T) {
	f := newFleet(t, 2, nil)
	gone := make(chan struct{})
	one := func() *decision.Decision {
		body := make([]byte, 1<<20)
		runtime.AddCleanup(&body[0], func(struct{}) { close(gone) }, struct{}{})
		req := f.request(1, 8192)
		req.Abandon = func(chooser.Withdrawal) { body[0]++ }
		c := f.choose(req)
		c.Release(done(decision.EndCompleted))
		return c.Decision
	}
	d := one()
	for end := time.Now().Add(20 * time.Second); ; {
		runtime.GC()
		select {
		case <-gone:
			if d.Pick() == nil {
				t.Error("no rank was picked")
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("the decision still keeps its request's memory")
		}
	}
}
