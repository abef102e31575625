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

// Whether a request can move is judged by the replicas that there are now: those of its decision may be gone, and others may have come.
func TestTheFleetAsItIsNowTakesWhatMoves(t *testing.T) {
	for name, tc := range map[string]struct {
		second replica.State // r1 as it is now
		third  string        // the model of r2, which comes after the decision; empty: it does not come
		change func(*chooser.Request)
		moves  bool
	}{
		"the other replica is ready":             {replica.StateReady, "", nil, true},
		"it drains now":                          {replica.StateDraining, "", nil, false},
		"it drains, a new one came":              {replica.StateDraining, "m", nil, true},
		"the new one serves another model":       {replica.StateDraining, "other", nil, false},
		"the request names its replicas":         {replica.StateDraining, "m", func(r *chooser.Request) { r.Options.Allowed = []replica.ID{"r0", "r3"} }, false},
		"it excludes one, and the other is left": {replica.StateReady, "", func(r *chooser.Request) { r.Options.Denied = []replica.ID{"r9"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngines(3)
				f := newFleet(t, 2, func(c *chooser.Config, p *chooser.Params) { c.HoldAbove, p.Engines = 0, e })
				defer f.running(t.Context())()
				f.holds(0, 1, 1600)
				req := f.request(1, 1700)
				req.Movable, req.Abandon = true, func(chooser.Withdrawal) {}
				if tc.change != nil {
					tc.change(req)
				}
				stream := f.choose(req)
				stream.Begin()
				second := *f.replicas[1]
				second.State = tc.second
				e.set(1, func(s *engineState) { s.view = &second })
				if tc.third != "" {
					f.book.AddRank(2)
					f.chooser.AddRank(2, &replica.Replica{ID: "r2", State: replica.StateReady, Slots: []replica.Slot{2}, Models: []replica.Model{{ID: tc.third}}}, 0)
				}
				e.set(0, func(s *engineState) { s.leaving = true })
				time.Sleep(time.Second)
				if got := stream.ShouldMove(); got != tc.moves {
					t.Errorf("ShouldMove() = %t, want %t", got, tc.moves)
				}
				stream.Release(done(decision.EndCompleted))
			})
		})
	}
}

// A replica that is not listed any more is left, too. One whose ranks are replaced by new ones is not.
func TestRequestsLeaveAReplicaThatIsGone(t *testing.T) {
	for name, replaced := range map[string]bool{"it is gone": false, "its ranks are new ones": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2, func(c *chooser.Config, p *chooser.Params) { c.HoldAbove, p.Engines = 0, newEngines(3) })
				defer f.running(t.Context())()
				f.holds(0, 1, 1600)
				stream := f.choose(f.request(1, 1700))
				stream.Begin()
				if replaced {
					f.chooser.AddRank(2, f.replicas[0], 0)
				}
				if stream.ShouldMove() {
					t.Error("it moves too early")
				}
				f.chooser.RemoveRank(0)
				if got := stream.ShouldMove(); got == replaced {
					t.Errorf("ShouldMove() = %t", got)
				}
				stream.Release(done(decision.EndCompleted))
			})
		})
	}
}
