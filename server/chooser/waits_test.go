package chooser_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
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

// Issue 14, item 11: room that comes by time alone wakes the first waiter of a queue that was idle.
func TestWaits11TheFirstWaiterIsWokenByTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
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

// Issue 14, item 11: max_wait ends a wait when it says, not with the next look.
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
