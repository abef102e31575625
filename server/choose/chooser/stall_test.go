package chooser_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// engines are what the chooser is told of ranks' engines.
type engines struct {
	mu   sync.Mutex
	list []engineState // guarded by mu
}

type engineState struct {
	hangs, blind, stopped, unhealthy, leaving bool
	steps                                     time.Duration // between steps, each of which shows in the counters; 0: a second
	usage                                     bool          // only the usage of KV blocks shows them
	stoppedAt                                 time.Time
	count                                     uint64
	requests                                  int
	kv                                        float64
	last                                      time.Time
	view                                      *replica.Replica
}

func newEngines(n int) *engines { return &engines{list: make([]engineState, n)} }

func (e *engines) set(i int, change func(*engineState)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.list[i])
}

// Vitals are as of an engine whose metrics are read every second.
func (e *engines) Vitals(slot replica.Slot, now time.Time) liveness.Vitals {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.list[slot]
	if step := max(s.steps, time.Second); !s.hangs && !s.stopped && now.Sub(s.last) >= step {
		s.last = now
		if s.usage {
			s.kv += 0.001
		} else {
			s.count += 10
		}
	}
	v := liveness.Vitals{Counted: now.Truncate(time.Second), Count: s.count, KVUsage: s.kv, Requests: s.requests, Answered: now.Truncate(time.Second), Unhealthy: s.unhealthy, Leaving: s.leaving, View: s.view}
	if s.blind {
		v.Counted, v.Count = time.Time{}, 0
	}
	if s.stopped {
		v.Counted, v.Answered = s.stoppedAt, s.stoppedAt
		if asked := s.stoppedAt.Add(time.Second); now.After(asked) {
			v.Asked, v.Late = asked, now.Sub(asked)
		}
	}
	return v
}

// Ask does nothing: the metrics are read every second.
func (e *engines) Ask(replica.Slot) {}

// watched is a fleet whose engines e shows.
func watched(t *testing.T, n int, e *engines) *fleet {
	return newFleet(t, n, func(c *chooser.Config, p *chooser.Params) {
		c.HoldAbove = 0
		p.Engines = e
	})
}

// sent sends r0 a request that may be taken back, and tells after how long it is.
func (f *fleet) sent(number int, streamed bool) (c *chooser.Choice, taken *atomic.Int64) {
	f.t.Helper()
	taken = new(atomic.Int64)
	began := time.Now()
	f.holds(0, number, 1600)
	req := f.request(number, 1700)
	req.Unstreamed, req.Movable = !streamed, true
	req.Abandon = func(chooser.Withdrawal) { taken.Store(int64(time.Since(began))) }
	if c = f.choose(req); c.Replica.ID != "r0" {
		f.t.Fatalf("the request goes to %s", c.Replica.ID)
	}
	return c, taken
}

// whither is the replica that a small request would be sent to now, and why not r0.
func (f *fleet) whither(number int) (replica.ID, decision.Veto) {
	f.t.Helper()
	req := f.request(number, 100)
	req.Booking = chooser.DryRun
	c := f.choose(req)
	return c.Replica.ID, c.Decision.List()[0].Veto
}

// An engine whose counters stand still with work on them is avoided, its requests without a byte are taken back,
// it is tried again with one request at a time, and it is used again once it shows life.
func TestWaits12CountersThatStandStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := watched(t, 2, e)
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second) // it was seen to count
		e.set(0, func(s *engineState) { s.hangs = true })
		time.Sleep(2 * time.Second)
		a, taken := f.sent(1, false)
		begun, keeps := f.sent(2, true)
		begun.Begin()
		time.Sleep(4 * time.Second)
		if at := time.Duration(taken.Load()); at < 2*time.Second || at > 3500*time.Millisecond {
			t.Errorf("the waiting request was taken back after %s", at)
		}
		if keeps.Load() != 0 {
			t.Error("a stream that has begun was taken back from a replica that is healthy")
		}
		if a.Begin() {
			t.Error("an answer may begin that was taken back")
		}
		for i := range 20 {
			if to, veto := f.whither(100 + i); to != "r1" || veto != decision.VetoStalled {
				t.Fatalf("a request would go to %s, r0 has veto %q", to, veto)
			}
		}
		req := f.request(150, 100)
		req.Booking = chooser.DryRun
		if silent := f.choose(req).Decision.List()[0].Silent; silent < 3 || silent > 7 {
			t.Errorf("the decision says that r0 was silent for %.1f s", silent)
		}
		a.Release(done(decision.EndMoved))
		begun.Release(done(decision.EndCanceled))
		time.Sleep(6 * time.Second)
		trial, taken := f.sent(3, false)
		if to, veto := f.whither(200); to != "r1" || veto != decision.VetoStalled {
			t.Errorf("beside a trial a request would go to %s, r0 has veto %q", to, veto)
		}
		time.Sleep(1500 * time.Millisecond)
		if taken.Load() != 0 {
			t.Error("the trial was given no time")
		}
		e.set(0, func(s *engineState) { s.hangs = false })
		time.Sleep(2 * time.Second)
		if _, veto := f.whither(201); veto != decision.VetoNone || taken.Load() != 0 {
			t.Errorf("an engine that works again has veto %q", veto)
		}
		trial.Release(done(decision.EndCompleted))
		f.empty()
	})
}

// Slow is not stalled. Nobody's request is taken back from an engine that works.
func TestWaits12SlowIsNotStalled(t *testing.T) {
	for name, c := range map[string]struct {
		engine engineState
		prompt int
		during time.Duration
	}{
		"the blocks in use grow while a prompt of minutes is read": {engineState{usage: true}, 60000, 3 * time.Minute},
		"a step of ten seconds, on an engine of unknown speed":     {engineState{steps: 10 * time.Second}, 4000, 19 * time.Second},
		"ever slower steps":                            {engineState{steps: 1900 * time.Millisecond}, 200, time.Minute},
		"no counters, and an answer of unknown length": {engineState{blind: true}, 4000, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngines(2)
				f := watched(t, 2, e)
				defer f.running(t.Context())()
				time.Sleep(3 * time.Second)
				e.set(0, func(s *engineState) { c.engine.count, c.engine.kv = s.count, s.kv; *s = c.engine; s.last = time.Now() })
				req := f.request(1, c.prompt)
				req.Unstreamed, req.Movable, req.Exclude, req.ExpectedOutput = true, true, []replica.ID{"r1"}, 0
				req.Abandon = func(chooser.Withdrawal) { t.Error("a request was taken back") }
				a := f.choose(req)
				for range int(c.during / time.Second) {
					time.Sleep(time.Second)
					if _, veto := f.whither(int(time.Now().UnixNano() % 1e6)); veto != decision.VetoNone {
						t.Fatalf("veto %q", veto)
					}
				}
				a.Release(done(decision.EndCompleted))
			})
		})
	}
}

// A rank that was silent for long and then went on has more time the next time.
func TestWaits12ARankIsComparedWithItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := watched(t, 2, e)
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second)
		stalled := 0
		for round := range 6 {
			e.set(0, func(s *engineState) { s.hangs = true })
			a, _ := f.sent(round, false)
			time.Sleep(8 * time.Second)
			if _, veto := f.whither(100 + round); veto == decision.VetoStalled {
				stalled++
			}
			e.set(0, func(s *engineState) { s.hangs = false })
			time.Sleep(2 * time.Second)
			a.Release(done(decision.EndCompleted))
		}
		if stalled == 0 || stalled > 3 {
			t.Errorf("called stalled in %d of 6 equal silences, want the first ones only", stalled)
		}
	})
}

// A replica that does not answer its health question either is avoided within two seconds of its stop, and its
// requests leave it soon after; when no replica answers, this machine may be at fault and all are used.
func TestWaits12StoppedIsAvoidedAtOnce(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngines(2)
			f := watched(t, 2, e)
			defer f.running(t.Context())()
			time.Sleep(3 * time.Second)
			a, taken := f.sent(1, true)
			stop := func(s *engineState) { s.stopped, s.stoppedAt = true, time.Now() }
			e.set(0, stop)
			if all {
				e.set(1, stop)
			}
			time.Sleep(2 * time.Second)
			if to, veto := f.whither(2); !all && (to != "r1" || veto != decision.VetoStalled) || all && veto != decision.VetoNone {
				t.Errorf("all %v: two seconds later a request would go to %s, r0 has veto %q", all, to, veto)
			}
			time.Sleep(time.Second)
			if at := time.Duration(taken.Load()); (at == 0) != all || at > 2700*time.Millisecond {
				t.Errorf("all %v: the waiting request was taken back after %s", all, at)
			}
			a.Release(done(decision.EndCanceled))
		})
	}
}

// A stream on a replica that is called unhealthy does not wait for ever.
func TestWaits12AStreamOnAnUnhealthyReplicaEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := watched(t, 2, e)
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second)
		a, taken := f.sent(1, true)
		a.Begin()
		a.FirstToken()
		e.set(0, func(s *engineState) { s.unhealthy = true }) // says its probe; the stream goes on
		for range 30 {
			time.Sleep(time.Second)
			a.Alive()
		}
		if taken.Load() != 0 {
			t.Error("a stream that flows was ended")
		}
		e.set(0, func(s *engineState) { s.hangs = true })
		began := time.Now()
		for taken.Load() == 0 && time.Since(began) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took < 9*time.Second || took > 12*time.Second {
			t.Errorf("ended after %s, want the ten seconds of chooser.stall.unhealthy", took)
		}
		a.Release(done(decision.EndFailed))
	})
}

// Replicas that nothing comes back from stay in use for a while when they are most of a pool.
func TestWaits12MostOfAFleetAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, nil)
		lose := func(n int, mute bool) {
			for i, r := range f.replicas {
				lost := *r
				lost.State, lost.Since = replica.StateReady, time.Now()
				if i < n {
					lost.State, lost.Mute = replica.StateUnhealthy, mute
				}
				f.replicas[i] = &lost
			}
		}
		usable := func() (n int) {
			req := f.request(1, 100)
			req.Booking, req.Options.PinnedRank = chooser.DryRun, -1
			c, err := f.chooser.Choose(t.Context(), req)
			if err != nil {
				return 0
			}
			for _, cand := range c.Decision.List() {
				if cand.Veto == decision.VetoNone {
					n++
				}
			}
			return n
		}
		for _, c := range []struct {
			lost int
			mute bool
			want int
		}{{1, true, 3}, {2, true, 2}, {3, true, 4}, {4, true, 4}, {4, false, 0}, {3, false, 1}} {
			lose(c.lost, c.mute)
			if n := usable(); n != c.want {
				t.Errorf("%d of 4 lost, mute %v: %d may be used, want %d", c.lost, c.mute, n, c.want)
			}
		}
		lose(4, true)
		time.Sleep(2 * time.Minute)
		if n := usable(); n != 0 {
			t.Errorf("two minutes later %d may be used", n)
		}
	})
}
