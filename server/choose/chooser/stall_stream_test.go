package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A stream that another replica can resume leaves a rank that serves nothing, long before its replica counts as unhealthy; one that
// cannot be resumed stays.
func TestAStreamThatCanBeResumedLeavesAStalledRank(t *testing.T) {
	for name, stop := range map[string]func(*engineState){
		"its counters stand still":      func(s *engineState) { s.hangs = true },
		"its process does not answer":   func(s *engineState) { s.stopped, s.stoppedAt = true, time.Now() },
		"it is silent without counters": func(s *engineState) { s.hangs, s.blind = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngines(2)
				f := watched(t, 2, e)
				defer f.running(t.Context())()
				time.Sleep(3 * time.Second)
				a, taken := f.sent(1, true)
				b, kept := f.sent(2, true)
				began := time.Now()
				for range 40 {
					time.Sleep(100 * time.Millisecond)
					a.Begin()
					b.Begin()
					a.FirstToken()
					b.FirstToken()
					a.Alive()
				}
				a.SetResumable(true)
				e.set(0, stop)
				stopped := time.Since(began)
				time.Sleep(20 * time.Second)
				if at := time.Duration(taken.Load()) - stopped; taken.Load() == 0 || at < 2*time.Second || at > 15*time.Second {
					t.Errorf("the stream was withdrawn %s after the stop", at)
				}
				if kept.Load() != 0 {
					t.Error("a stream that cannot be resumed was withdrawn")
				}
				a.Release(done(decision.EndResumed))
				b.Release(done(decision.EndCanceled))
			})
		})
	}
}

// A stream that alone is silent is resumed elsewhere after stall.stream, while its rank serves others; not when it cannot be
// resumed, nor while its client is waited for, nor when it is slow.
func TestAStreamThatAloneIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := watched(t, 2, e)
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second)
		silent, taken := f.sent(1, true)
		slow, slowTaken := f.sent(2, true)
		lost, lostTaken := f.sent(3, true)
		unread, unreadTaken := f.sent(4, true)
		silent.Begin()
		slow.Begin()
		lost.Begin()
		unread.Begin()
		began := time.Now()
		silent.SetResumable(true)
		slow.SetResumable(true)
		unread.SetResumable(true)
		for i := range 100 { // seconds
			time.Sleep(time.Second)
			if i%25 == 0 {
				slow.Alive()
			}
			if i == 20 {
				unread.SetResumable(false) // its next piece came, and its client takes none
			}
			if taken.Load() != 0 && time.Since(began) < 29*time.Second {
				t.Fatal("the silent stream was withdrawn too early")
			}
		}
		if at := time.Duration(taken.Load()); at < 29*time.Second || at > 33*time.Second {
			t.Errorf("the silent stream was withdrawn after %s, want about 30 s", at)
		}
		for name, n := range map[string]int64{"slow": slowTaken.Load(), "that cannot be resumed": lostTaken.Load(), "that its client does not read": unreadTaken.Load()} {
			if n != 0 {
				t.Errorf("a stream %s was withdrawn after %s", name, time.Duration(n))
			}
		}
		for _, c := range []interface{ Alive() }{silent, slow, lost, unread} {
			c.Alive()
		}
		silent.Release(done(decision.EndResumed))
		slow.Release(done(decision.EndCompleted))
		lost.Release(done(decision.EndCompleted))
		unread.Release(done(decision.EndCompleted))
	})
}

// slowEngines take their time in each round.
type slowEngines struct {
	*engines
	last time.Time
}

func (s *slowEngines) Vitals(slot replica.Slot, now time.Time) liveness.Vitals {
	if slot == 0 && !now.Equal(s.last) {
		time.Sleep(700 * time.Millisecond)
		s.last = time.Now()
	}
	return s.engines.Vitals(slot, now)
}

// On a machine that is short of processor time the rounds come late. Each counts in full, or a silent replica would keep its streams
// for many times longer than the settings say.
func TestLateRoundsCountInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines(2)
		f := newFleet(t, 2, func(c *chooser.Config, p *chooser.Params) {
			c.HoldAbove = 0
			p.Engines = &slowEngines{engines: e}
		})
		defer f.running(t.Context())()
		time.Sleep(3 * time.Second)
		a, taken := f.sent(1, true)
		a.Begin()
		a.FirstToken()
		e.set(0, func(s *engineState) { s.unhealthy, s.hangs, s.blind = true, true, true })
		began := time.Now()
		for taken.Load() == 0 && time.Since(began) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took < 9*time.Second || took > 13*time.Second {
			t.Errorf("ended after %s, want the ten seconds of chooser.stall.unhealthy", took)
		}
		a.Release(done(decision.EndFailed))
	})
}
