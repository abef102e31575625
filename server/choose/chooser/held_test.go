package chooser_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestHeldUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		first := f.choose(f.request(1, 30000)) // about five seconds of prefill
		var second *chooser.Choice
		go func() { second = f.choose(f.request(2, 1000)) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if second != nil || f.chooser.Waiting() != 1 {
			t.Fatal("the second request did not wait although the rank has seconds of work")
		}
		first.FirstToken()
		synctest.Wait()
		if second == nil || f.chooser.Waiting() != 0 {
			t.Fatal("the first token made no room")
		}
		if held := second.Decision.Held; held != time.Second {
			t.Errorf("held for %s, want 1s", held)
		}
		first.Release(done(decision.EndCompleted))
		second.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// However many come at one moment, the idle rank takes one long prompt and the others wait.
func TestWhoLosesTheRaceForARankWaits(t *testing.T) {
	for range 50 {
		f := newFleet(t, 1, nil)
		var wait sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		start := make(chan struct{})
		for i := range 8 {
			wait.Go(func() {
				<-start
				if c, err := f.chooser.Choose(ctx, f.request(i, 60000)); err == nil {
					<-ctx.Done()
					c.Release(done(decision.EndCanceled))
				}
			})
		}
		close(start)
		for limit := time.Now().Add(20 * time.Second); f.chooser.Waiting() != 7; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("%d wait, want 7", f.chooser.Waiting())
			}
		}
		leave()
		wait.Wait()
		f.empty()
	}
}

// Those who free a rank look at what the last visit left waiting while the next visit runs.
func TestManyComeAndGoWhileOthersWait(t *testing.T) {
	f := newFleet(t, 3, nil)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = f.chooser.Run(ctx) }()
	var held atomic.Int64
	var all sync.WaitGroup
	for client := range 24 {
		all.Go(func() {
			for turn := range 15 {
				c, err := f.chooser.Choose(ctx, f.request(client*100+turn, 6000)) // nearly a second each
				if err != nil {
					t.Errorf("client %d: %v", client, err)
					return
				}
				if c.Decision.Held > 0 {
					held.Add(1)
				}
				c.FirstToken()
				c.Progress(turn)
				c.Release(done(decision.EndCompleted))
			}
		})
	}
	all.Wait()
	cancel()
	<-stopped
	if held.Load() == 0 {
		t.Error("nobody was held: the test shows nothing")
	}
	f.empty()
}

// Nobody reports the first token of an unstreamed answer: time makes the room.
func TestUnstreamedRequestsDoNotHoldOthersForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = f.chooser.Run(ctx) }()
		var choices []*chooser.Choice
		for i := range 5 {
			req := f.request(i, 8000) // about a second each
			req.Unstreamed = true
			choices = append(choices, f.choose(req))
		}
		synctest.Wait() // the queue's goroutine counts a released one off after waking it
		if n := f.chooser.Waiting(); n != 0 {
			t.Errorf("%d still wait", n)
		}
		for _, c := range choices {
			c.Release(done(decision.EndCompleted))
		}
		if r := f.chooser.Rates()[0]; r.Samples != 20 {
			t.Errorf("unstreamed answers taught %d samples", r.Samples)
		}
		cancel()
		<-stopped
		f.empty()
	})
}

func TestWhoLeavesIsOutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		first := f.choose(f.request(1, 60000))
		ctx, cancel := context.WithCancel(context.Background())
		var err error
		go func() { _, err = f.chooser.Choose(ctx, f.request(2, 1000)) }()
		synctest.Wait()
		if f.chooser.Waiting() != 1 {
			t.Fatal("the request does not wait")
		}
		cancel()
		synctest.Wait()
		if f.chooser.Waiting() != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d wait, error %v", f.chooser.Waiting(), err)
		}
		first.Release(done(decision.EndCompleted))
		f.empty()
	})
}

func TestADeadlineThatCannotBeMetIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		first := f.choose(f.request(1, 60000)) // more than seven seconds
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := f.chooser.Choose(ctx, f.request(2, 1000))
		var refused *chooser.Refused
		if !errors.As(err, &refused) || refused.Cause != "deadline" || refused.RetryAfter < 5*time.Second {
			t.Errorf("Choose() = %v (%+v), want a refusal with a hint of seconds", err, refused)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the refusal took %s", waited)
		}
		first.Release(done(decision.EndCompleted))
		f.empty()
	})
}

func TestShutdownRefusesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = f.chooser.Run(ctx) }()
		first := f.choose(f.request(1, 60000))
		var err error
		go func() { _, err = f.chooser.Choose(context.Background(), f.request(2, 1000)) }()
		synctest.Wait()
		cancel()
		<-stopped
		synctest.Wait()
		var refused *chooser.Refused
		if !errors.As(err, &refused) || refused.Cause != "shutdown" {
			t.Errorf("Choose() = %v, want a refusal for shutdown", err)
		}
		first.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// Many wait for the only rank that holds their document while another is idle: the document spreads.
func TestAHotPrefixSpreadsOutOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.holds(0, 1, 8192)
		busy := f.choose(f.request(99, 40000))
		if busy.Slot == 0 { // whichever took it, the holder must be the busy one
			f.holds(0, 1, 8192)
		} else {
			f.holds(1, 1, 8192)
		}
		used := map[replica.Slot]int{}
		for range 20 {
			req := f.request(1, 9000)
			go func() {
				c := f.choose(req)
				f.mu.Lock()
				used[c.Slot]++
				f.mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				c.FirstToken()
				c.Release(done(decision.EndCompleted))
			}()
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if used[1-busy.Slot] < 10 {
			t.Errorf("the idle rank served %d of 20 while the holder was busy: %v", used[1-busy.Slot], used)
		}
		busy.FirstToken()
		busy.Release(done(decision.EndCompleted))
		time.Sleep(time.Second)
		synctest.Wait()
		f.empty()
	})
}
