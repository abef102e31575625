package chooser_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// running gives f's chooser and book life until the test ends, and lets them come to rest.
func (f *fleet) running(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() { done <- f.chooser.Run(ctx) }()
	go func() { done <- f.book.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				f.t.Error(err)
			}
		}
	}
}

// Room that comes by time alone wakes the first waiter of a queue that was idle.
func TestWaits11TheFirstWaiterIsWokenByTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		defer f.running(t.Context())()
		time.Sleep(100 * time.Millisecond) // its keeper of time sleeps
		first := f.request(1, 6000)        // three quarters of a second, which only time ends
		first.Unstreamed = true
		a := f.choose(first)
		began := time.Now()
		b := f.choose(f.request(2, 200))
		if took := time.Since(began); took < 100*time.Millisecond || took > time.Second {
			t.Errorf("the second request waited %s, want about half a second", took)
		}
		b.Release(done(decision.EndCompleted))
		a.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// The bound max_wait ends a wait when it says, not with the next look.
func TestWaits11MaxWaitEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *chooser.Config, _ *chooser.Params) { c.Queue.MaxWait = time.Second })
		defer f.running(t.Context())()
		time.Sleep(100 * time.Millisecond)
		a := f.choose(f.request(1, 60000))
		began := time.Now()
		_, err := f.chooser.Choose(context.Background(), f.request(2, 200))
		var refused *chooser.Refused
		if !errors.As(err, &refused) || refused.Cause != "timeout" {
			t.Errorf("Choose = %v, want a refusal for waiting too long", err)
		}
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("refused after %s, want a second", took)
		}
		a.Release(done(decision.EndCompleted))
	})
}

// Of a caller that need report nothing but the end, a prefill ends as predicted: two
// small choices that nobody releases are no reason for anybody to wait.
func TestWaits13ChoicesThatNobodyReportsFreezeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		defer f.running(t.Context())()
		for i := range 2 {
			small := f.request(i, 3)
			small.Lease = time.Minute
			f.choose(small)
		}
		time.Sleep(5 * time.Second)
		for i := range 6 {
			began := time.Now()
			c := f.choose(f.request(10+i, 200))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("request %d waited %s on an idle fleet", i, took)
			}
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
		}
	})
}

// Only the release is a must: a caller without other reports gets its choices at once.
func TestWaits13TheMinimalCallerGetsItsChoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		defer f.running(t.Context())()
		for i := range 8 {
			req := f.request(i, 800)
			req.Lease = time.Minute
			began := time.Now()
			f.choose(req)
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("choice %d waited %s", i, took)
			}
			time.Sleep(time.Second)
		}
	})
}

// Who says that it reports the first token is believed, and that token still counts
// when it comes after the predicted time, as far as reports count.
func TestWaits13APromisedFirstTokenKeepsThePrefillBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		for i, promised := range []bool{true, true, true, false, false, false, false, false} {
			req := f.request(i, 4000)
			req.Lease, req.Reports = time.Minute, promised
			c := f.choose(req)
			time.Sleep(2 * time.Second) // half a second was predicted
			if left := f.book.View(0, time.Now()).Prefilling; (left == 1) != promised {
				t.Errorf("promised %v: %d prompts are prefilling", promised, left)
			}
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
			if samples := f.chooser.Rates()[0].Samples; (samples > 0) != (i >= 3) {
				t.Errorf("promised %v: %d reports taught %d samples", promised, i+1, samples)
			}
		}
		f.empty()
	})
}

// poolNow has the replicas of all pools as they are now.
type poolNow struct {
	list atomic.Pointer[[]*replica.Replica]
}

func (p *poolNow) Serving(string, string) []*replica.Replica { return *p.list.Load() }

// A request that waits sees a replica that has started since it came.
func TestAWaiterIsServedByAReplicaThatStartsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &poolNow{}
		f := newFleet(t, 2, func(_ *chooser.Config, p *chooser.Params) { p.Pools = pool })
		f.know()
		old := f.replicas[:1]
		pool.list.Store(&old)
		defer f.running(t.Context())()
		time.Sleep(100 * time.Millisecond)
		ask := func(number, n int) *chooser.Request {
			req := f.request(number, n)
			req.Replicas = old
			return req
		}
		a := f.choose(ask(1, 60_000)) // some ten seconds
		time.AfterFunc(time.Second, func() {
			pool.list.Store(&f.replicas)
			f.chooser.Changed()
		})
		began := time.Now()
		b := f.choose(ask(2, 200))
		if took := time.Since(began); took < time.Second || took > 2*time.Second || b.Slot != 1 {
			t.Errorf("the request waited %s and has rank %d, want a second and the new rank", took, b.Slot)
		}
		b.Release(done(decision.EndCompleted))
		a.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// A request that may go to a full rank alone does not hold up those behind it: another rank has room for them.
func TestARequestForAFullRankHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.know()
		defer f.running(t.Context())()
		pinned := func(to string, number, n int) *chooser.Request {
			req := f.request(number, n)
			req.Options.Pinned, req.Options.PinnedRank = replica.ID(to), -1
			return req
		}
		full, soon := f.choose(pinned("r0", 1, 30000)), f.choose(pinned("r1", 2, 20000))
		_, _, first := f.submit(pinned("r0", 3, 64))
		_, _, second := f.submit(f.request(4, 4000))
		synctest.Wait()
		if n := f.chooser.Waiting(); n != 2 {
			t.Fatalf("%d requests wait, want both", n)
		}
		soon.FirstToken()
		time.Sleep(100 * time.Millisecond)
		select {
		case c := <-second:
			if c.Replica.ID != "r1" {
				t.Errorf("it went to %s, want r1", c.Replica.ID)
			}
			f.serve(c)
		default:
			t.Error("the request waits, though a rank is idle: one that waits for another rank is before it")
		}
		full.FirstToken()
		synctest.Wait()
		f.serve(<-first)
		f.serve(full)
		f.serve(soon)
		f.empty()
	})
}
