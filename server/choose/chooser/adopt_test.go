package chooser_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// reports records what an Observer gets.
type reports struct {
	mu  sync.Mutex
	got []string
}

func (r *reports) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, s)
}

func (r *reports) FirstToken(time.Time, int) { r.note("first") }
func (r *reports) Progress(int)              { r.note("progress") }
func (r *reports) Ended(*chooser.End)        { r.note("end") }

// decided is f's choice for req as another router gets it.
func decided(c *chooser.Choice, req *chooser.Request) chooser.Decided {
	d := *c.Decision
	d.Candidates, d.Chosen = []decision.Candidate{*c.Decision.Pick()}, 0
	return chooser.Decided{Decision: &d, Replica: c.Replica, Rank: c.Rank, Hashes: req.Hashes(block)}
}

func TestAnAdoptedChoiceIsBookedAsTheOriginal(t *testing.T) {
	there, here := newFleet(t, 3, nil), newFleet(t, 3, nil)
	there.holds(1, 7, 4096)
	req := there.request(7, 8192)
	original := there.choose(req)

	seen := &reports{}
	mine := *req
	mine.Replicas, mine.Observer = here.replicas, seen
	c, err := here.chooser.Adopt(&mine, decided(original, req))
	if err != nil {
		t.Fatal(err)
	}
	same := func(when string) {
		t.Helper()
		now := time.Now()
		a, b := there.book.View(1, now), here.book.View(1, now)
		if a.InFlight != b.InFlight || math.Abs(a.PrefillTokens-b.PrefillTokens) > 0.01*a.PrefillTokens+100 || a.DecodeBlocks != b.DecodeBlocks || a.Prefilling != b.Prefilling {
			t.Errorf("%s: the adopted booking is %+v, the original %+v", when, b, a)
		}
	}
	same("booked")
	original.FirstToken()
	c.FirstToken()
	same("prefilled")
	original.Progress(40)
	c.Progress(40)
	c.Progress(40)
	same("decoding")
	original.Release(done(decision.EndCompleted))
	if !c.Release(done(decision.EndCompleted)) || c.Release(done(decision.EndCompleted)) {
		t.Error("Release must count once")
	}
	there.empty()
	here.empty()
	if want := []string{"first", "progress", "end"}; !slices.Equal(seen.got, want) {
		t.Errorf("the observer got %v, want %v", seen.got, want)
	}
	if len(here.outcomes) != 1 || here.outcomes[0].ID != req.ID {
		t.Errorf("outcomes %v, want the adopted one", here.outcomes)
	}
}

func TestAnAdoptedBookingComesBackAfterItsEnd(t *testing.T) {
	f := newFleet(t, 1, nil)
	req := f.request(1, 1024)
	original := f.choose(req)
	by := decided(original, req)
	original.Release(done(decision.EndMoved))
	if _, err := f.chooser.Adopt(req, by); !errors.Is(err, chooser.ErrDuplicate) {
		t.Errorf("a choice of one's own after its end: %v, want ErrDuplicate", err)
	}
	by.Recorded, req.Again = true, true
	c, err := f.chooser.Adopt(req, by)
	if err != nil {
		t.Fatal(err)
	}
	if l := f.book.View(0, time.Now()); l.InFlight != 1 {
		t.Errorf("%d in flight, want the booking again", l.InFlight)
	}
	c.Release(done(decision.EndCompleted))
	f.empty()
	if len(f.outcomes) != 1 {
		t.Errorf("%d outcomes, want the original's alone: the other router records the rest", len(f.outcomes))
	}
}

func TestAdoptRejectsAnUnknownRank(t *testing.T) {
	there, here := newFleet(t, 2, nil), newFleet(t, 1, nil)
	req := there.request(1, 64)
	req.Options.Pinned, req.Options.PinnedRank = "r1", -1
	if _, err := here.chooser.Adopt(req, decided(there.choose(req), req)); !errors.Is(err, load.ErrNoRank) {
		t.Errorf("Adopt = %v, want ErrNoRank", err)
	}
	here.empty()
}

func TestAdoptOfAnUnbookedChoiceBooksNothing(t *testing.T) {
	f := newFleet(t, 1, nil)
	req := f.request(1, 64)
	req.Booking = chooser.DryRun
	c, err := f.chooser.Adopt(req, decided(f.choose(req), req))
	if err != nil || c.Decision.Pick() == nil {
		t.Fatal(c, err)
	}
	c.FirstToken()
	if c.Release(done(decision.EndCompleted)) {
		t.Error("there is nothing to release")
	}
	f.empty()
}

func TestAgeCountsAsWaited(t *testing.T) { synctest.Test(t, testAge) }

func testAge(t *testing.T) {
	f := newFleet(t, 1, func(cfg *chooser.Config, _ *chooser.Params) { cfg.HoldAbove = time.Nanosecond })
	full := f.choose(f.request(1, 60_000))
	var order []string
	submit := func(id string, age time.Duration) *chooser.Waiting {
		req := f.request(2, 600)
		req.ID, req.Age = id, age
		return f.chooser.Submit(req, time.Time{}, func(c *chooser.Choice, err error) {
			if err != nil {
				t.Errorf("%s: %v", id, err)
				return
			}
			order = append(order, id)
			if c.Decision.Held < age {
				t.Errorf("%s: held %v, want at least its age %v", id, c.Decision.Held, age)
			}
			defer c.Release(done(decision.EndCompleted))
		})
	}
	young, old := submit("young", 0), submit("old", 5*time.Second)
	gone := submit("gone", 0)
	if young == nil || old == nil || gone == nil {
		t.Fatal("all three must wait")
	}
	if !gone.Leave() || gone.Leave() {
		t.Error("a request leaves once")
	}
	full.Release(done(decision.EndCompleted))
	for range 100 {
		if f.chooser.Tick(); len(order) == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !slices.Equal(order, []string{"old", "young"}) {
		t.Errorf("released in the order %v, want the one that waited longer first", order)
	}
	f.empty()
}

func TestReplicasThatAPeerFindsBrokenAreUsedLast(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.holds(0, 1, 1024)
	req := f.request(1, 1024)
	req.Avoid = append(req.Avoid, "r0")
	if c := f.choose(req); c.Replica.ID != "r1" {
		t.Errorf("chose %s, want the other", c.Replica.ID)
	}
	req = f.request(1, 1024)
	req.Avoid = append(req.Avoid, "r0", "r1")
	if c := f.choose(req); c.Replica.ID != "r0" {
		t.Errorf("chose %s, want the holder: all are found broken", c.Replica.ID)
	}
}

func TestBlockSizes(t *testing.T) {
	f := newFleet(t, 3, nil)
	if got := f.chooser.BlockSizes(f.replicas); !slices.Equal(got, []int{block}) {
		t.Errorf("block sizes %v", got)
	}
}
