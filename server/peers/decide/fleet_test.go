package decide_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestTheFleetAsksOneDecider(t *testing.T) {
	w := newWorld(t, 1, 3, 4, func(c *chooser.Config) { c.Policy = decision.LeastRequests })
	for i := range 60 {
		w.routers[i%3].submit(i, 320)
		w.run(2 * time.Millisecond)
		w.prefill()
	}
	for range 100 {
		w.run(10 * time.Millisecond)
		w.prefill()
	}
	w.atRest("loaded")
	counts := map[replica.ID]int{}
	for _, r := range w.routers {
		if len(r.live) != 20 || r.alone != 0 || len(r.waiting) != 0 {
			t.Errorf("%s has %d choices, %d alone, %d waiting; want 20, 0, 0", r.id, len(r.live), r.alone, len(r.waiting))
		}
		for c := range r.live {
			counts[c.Replica.ID]++
			if by := c.Decision.DecidedBy; (by == "") != (r.frontend.Decider("m") == r.id) {
				t.Errorf("%s: decided by %q", r.id, by)
			}
		}
	}
	for id, n := range counts {
		if n < 10 || n > 20 {
			t.Errorf("%s has %d of 60 requests, want about 15: the decider sees all", id, n)
		}
	}
	w.endAll()
}

func TestASilentDeciderCostsPatienceOnce(t *testing.T) {
	w := newWorld(t, 2, 3, 4)
	decider := w.router(w.routers[0].frontend.Decider("m"))
	var others []*router
	for _, r := range w.routers {
		if r != decider {
			others = append(others, r)
		}
	}
	for i := range 20 {
		others[i%2].submit(i, 320)
		w.run(50 * time.Millisecond)
		w.prefill()
	}
	w.run(time.Second)
	w.prefill()
	w.run(time.Second)
	decider.stopped = true
	began := w.now
	for _, r := range others {
		r.submit(100, 320)
	}
	w.run(100 * time.Millisecond)
	for _, r := range others {
		if len(r.waiting) != 0 || r.alone != 1 {
			t.Errorf("%s: %d wait and %d were decided alone %v after the decider fell silent", r.id, len(r.waiting), r.alone, w.now.Sub(began))
		}
	}
	w.run(400 * time.Millisecond)
	next := others[0].frontend.Decider("m")
	if next == decider.id || next != others[1].frontend.Decider("m") {
		t.Errorf("the routers ask %s and %s, want one that answers", next, others[1].frontend.Decider("m"))
	}
	w.atRestOf(others, "without the silent one")
	before := others[0].alone + others[1].alone
	for i := range 20 {
		others[i%2].submit(i, 320)
		w.run(5 * time.Millisecond)
		w.prefill()
	}
	if n := others[0].alone + others[1].alone; n != before {
		t.Errorf("%d decisions were made alone although a decider answers", n-before)
	}
	decider.stopped = false
	for _, f := range decider.backlog {
		f()
	}
	decider.backlog = nil
	w.run(5 * time.Second)
	w.atRest("after it is back")
	w.endAll()
}

// The time that it takes to ask is no wait in the hold queue, and the decider's own choices are not kept back for it.
func TestRequestsThatFindRoomWereNotHeld(t *testing.T) {
	w := newWorld(t, 4, 3, 4)
	w.reading = time.Microsecond
	for round := range 2 { // after the first, the decider knows how far its peers are
		for i, r := range w.routers {
			r.submit(10*round+i, 320)
			if len(r.live) == round && r.frontend.Decider("m") == r.id {
				t.Errorf("round %d: the decider keeps its own choice back", round)
			}
			w.run(10 * time.Millisecond)
			w.prefill()
		}
	}
	for _, r := range w.routers {
		for c := range r.live {
			if c.Decision.Held != 0 {
				t.Errorf("%s: held %v, want no wait", r.id, c.Decision.Held)
			}
		}
		if len(r.live) != 2 {
			t.Errorf("%s has %d choices, want 2", r.id, len(r.live))
		}
	}
	w.endAll()
}

func TestHeldRequestsMoveWithTheirAge(t *testing.T) {
	w := newWorld(t, 3, 3, 1)
	decider := w.router(w.routers[0].frontend.Decider("m"))
	var r *router
	for _, other := range w.routers {
		if other != decider {
			r = other
		}
	}
	r.submit(1, 300_000) // it fills the only rank
	w.run(100 * time.Millisecond)
	for i := range 5 {
		r.submit(10+i, 320)
	}
	w.run(time.Second)
	if len(r.waiting) != 5 || decider.chooser.Waiting() != 5 {
		t.Fatalf("%d wait at the frontend and %d in the decider's queue, want 5", len(r.waiting), decider.chooser.Waiting())
	}
	w.kill(decider)
	w.run(time.Second)
	next := w.router(r.frontend.Decider("m"))
	if next.chooser.Waiting() != 5 {
		t.Fatalf("%d wait at the new decider, want 5", next.chooser.Waiting())
	}
	for _, c := range slices.Collect(maps.Keys(r.live)) {
		r.release(c)
	}
	for range 100 {
		w.run(50 * time.Millisecond)
		w.prefill()
	}
	if len(r.live) != 5 || r.alone != 0 {
		t.Errorf("%d were decided, %d alone; want 5 and 0", len(r.live), r.alone)
	}
	for c := range r.live {
		if c.Decision.Held < 1900*time.Millisecond {
			t.Errorf("held %v, want the time at the dead decider, too", c.Decision.Held)
		}
	}
	w.endAll()
}

// A decider that says that a request is held, and nothing more, is believed for as long as a queue may hold one.
func TestAHeldRequestIsNotHeldForEver(t *testing.T) {
	w := newWorld(t, 5, 2, 2, func(c *chooser.Config) { c.Queue.MaxWait = 2 * time.Second })
	decider := w.router(w.routers[0].frontend.Decider("m"))
	r := w.routers[0]
	if r == decider {
		r = w.routers[1]
	}
	decider.stopped = true
	r.submit(1, 320)
	claim := func(d time.Duration) {
		for range int(d / (50 * time.Millisecond)) {
			r.frontend.Reply(decider.id, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Held{Held: 1}})
			w.run(50 * time.Millisecond)
		}
	}
	claim(1900 * time.Millisecond)
	if len(r.waiting) != 1 || r.alone != 0 {
		t.Fatalf("after 1.9 s %d wait, %d were decided alone; want 1 and 0", len(r.waiting), r.alone)
	}
	claim(300 * time.Millisecond)
	if len(r.waiting) != 0 || r.alone != 1 {
		t.Errorf("after 2.2 s %d wait, %d were decided alone; want 0 and 1", len(r.waiting), r.alone)
	}
	r.dead, decider.dead = true, true
}

// Random operations over three routers, with delays, lost messages, broken links, silent routers, partitions and a death.
func TestAtRestTheDeciderKnowsWhatIsInFlight(t *testing.T) {
	seeds := 40
	if testing.Short() || raceEnabled {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := bareWorld(t, uint64(seed)+100)
			w.splits = seed%4 == 1
			for range 3 {
				w.add(4)
			}
			w.connect()
			w.delay = func() time.Duration { return time.Duration(w.dice.Int64N(int64(3 * time.Millisecond))) }
			if seed%3 == 0 {
				w.loss = 0.02
			}
			for range 400 {
				w.operate()
				w.run(time.Duration(w.dice.Int64N(int64(10 * time.Millisecond))))
			}
			w.heal()
			w.run(15 * time.Second)
			w.atRest("at rest")
			for _, r := range w.routers {
				if !r.dead && len(r.waiting) > 0 && w.busy() == 0 {
					t.Errorf("%d requests wait at %s before idle replicas", len(r.waiting), r.id)
				}
			}
			w.endAll()
		})
	}
}
