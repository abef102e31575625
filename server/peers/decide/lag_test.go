package decide_test

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
)

// The hold queue releases requests of several routers together. Those of the decider itself left half a round trip before the
// others, and arrived at engines in another order than the one in which they were chosen.
func TestTheDecidersOwnHeldRequestsLeaveWithTheOthers(t *testing.T) {
	w := newWorld(t, 3, 2, 1, func(c *chooser.Config) { c.HoldAbove = 10 * time.Second })
	decider, other := w.routers[0], w.routers[1]
	if decider.frontend.Decider("m") != decider.id {
		decider, other = other, decider
	}
	other.submit(1, 300_000) // it fills the only rank
	w.run(3 * time.Second)   // and the round trip is measured
	other.submit(2, 320)
	decider.submit(3, 320)
	w.run(100 * time.Millisecond)
	if len(other.waiting) != 1 || len(decider.waiting) != 1 {
		t.Fatalf("%d and %d wait, want one at each router", len(decider.waiting), len(other.waiting))
	}
	for c := range other.live {
		other.release(c)
	}
	for range 20 {
		w.run(100 * time.Microsecond)
		if own := len(decider.live); own != len(other.live) {
			t.Fatalf("%d of the decider's own requests and %d of the other router's have left", own, len(other.live))
		}
	}
	if len(decider.live) != 1 {
		t.Errorf("%d of the decider's own requests have left, want it", len(decider.live))
	}
	decider.submit(4, 320) // one that is not held leaves at once
	if len(decider.live) != 2 {
		t.Error("a request that was not held is kept back")
	}
	w.endAll()
}
