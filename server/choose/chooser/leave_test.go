package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// When a replica is left, requests without an answer are withdrawn, streams that have begun learn that they should move, and both only
// while another replica is there to take them.
func TestRequestsLeaveAReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas  int
		elsewhere replica.State
		moves     bool
	}{
		"another is ready":     {2, replica.StateReady, true},
		"another drains, too":  {2, replica.StateDraining, false},
		"there is no other":    {1, replica.StateReady, false},
		"stalls are not found": {2, replica.StateReady, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngines(tc.replicas)
				f := newFleet(t, tc.replicas, func(c *chooser.Config, p *chooser.Params) {
					c.HoldAbove, p.Engines = 0, e
					if name == "stalls are not found" {
						c.Stall.After = 0
					}
				})
				defer f.running(t.Context())()
				if tc.replicas > 1 {
					f.replicas[1].State = tc.elsewhere
				}
				waits, taken := f.sent(1, true)
				begun, kept := f.sent(2, true)
				begun.Begin()
				begun.FirstToken()
				time.Sleep(time.Second)
				if taken.Load() != 0 || begun.ShouldMove() {
					t.Fatal("requests leave a replica that nobody left")
				}
				e.set(0, func(s *engineState) { s.leaving = true })
				time.Sleep(time.Second)
				if got := taken.Load() != 0; got != tc.moves {
					t.Errorf("the request without an answer was withdrawn: %t, want %t", got, tc.moves)
				}
				if tc.moves && waits.Begin() {
					t.Error("the answer of a request that was withdrawn may begin")
				}
				if got := begun.ShouldMove(); got != tc.moves {
					t.Errorf("ShouldMove() = %t, want %t", got, tc.moves)
				}
				if kept.Load() != 0 {
					t.Error("a stream that has begun was withdrawn: it moves by itself")
				}
				e.set(0, func(s *engineState) { s.leaving = false })
				time.Sleep(time.Second)
				if begun.ShouldMove() {
					t.Error("after the drain was undone streams still move")
				}
				waits.Release(done(decision.EndMoved))
				begun.Release(done(decision.EndCompleted))
				f.empty()
			})
		})
	}
}
