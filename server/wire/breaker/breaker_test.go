package breaker

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// testConfig is the configuration that most tests use.
func testConfig() Config {
	return Config{Failures: 5, Rate: 0.5, MinRequests: 20, Window: 10 * time.Second, OpenFor: 5 * time.Second, MaxOpenFor: time.Minute, Trials: 2, MaxEjected: 0.5}
}

func fail(b *Breaker, id replica.ID) bool    { return attempt(b, id, retry.Unreachable) }
func serveOK(b *Breaker, id replica.ID) bool { return attempt(b, id, retry.OK) }

func attempt(b *Breaker, id replica.ID, o retry.Verdict) bool {
	pass, ok := b.Allow(id)
	if ok {
		b.Report(id, pass, found(o))
	}
	return ok
}

var requests atomic.Uint64

// found is what another replica's success shows of one of many requests of one tenant.
func found(o retry.Verdict) retry.Finding {
	f := retry.Find(o, retry.Origin{Tenant: 1, Request: requests.Add(1)})
	f.Sure = true
	return f
}

// allows asks for a request whose result is never reported.
func allows(b *Breaker, id replica.ID) bool {
	_, ok := b.Allow(id)
	return ok
}

func TestOpensTriesAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		for i := range 5 {
			if !fail(b, "a") {
				t.Fatalf("open after %d failures", i)
			}
		}
		if allows(b, "a") || b.State("a") != Open || b.State("b") != Closed || !allows(b, "b") {
			t.Fatal("five failures in a row must open one replica's circuit")
		}
		time.Sleep(testConfig().OpenFor)
		trial, ok := b.Allow("a")
		if !ok {
			t.Fatal("no trial after the pause")
		}
		if allows(b, "a") {
			t.Fatal("two trials at once")
		}
		b.Report("a", trial, found(retry.Unavailable))
		time.Sleep(testConfig().OpenFor)
		if allows(b, "a") {
			t.Fatal("a failed trial must double the pause")
		}
		time.Sleep(testConfig().OpenFor)
		if !attempt(b, "a", retry.Canceled) {
			t.Fatal("no second trial")
		}
		if !serveOK(b, "a") || b.State("a") != Trial || !serveOK(b, "a") || b.State("a") != Closed {
			t.Errorf("two good trials must close it; state %v", b.State("a"))
		}
	})
}

func TestBreakerIgnoresTheClientsFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		for range 100 {
			for _, o := range []retry.Verdict{retry.ClientFault, retry.Refused, retry.Canceled} {
				if !attempt(b, "a", o) {
					t.Fatalf("opened by %v", o)
				}
			}
		}
	})
}

func TestOpensOnARateOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		n := 0
		for ; n < 100; n++ {
			outcome := retry.OK
			if n%2 == 1 {
				outcome = retry.EngineError
			}
			if !attempt(b, "a", outcome) {
				break
			}
		}
		if n < 19 || n > 22 {
			t.Errorf("opened after %d requests of which half failed, want 20", n)
		}
	})
}

func TestBreakerForgetsOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		for range 100 {
			fail(b, "a")
			serveOK(b, "a")
			serveOK(b, "a")
			time.Sleep(3e9)
		}
		if b.State("a") != Closed {
			t.Error("one failure in three, spread out, must not open it")
		}
	})
}

// tripped is a breaker whose circuit has just opened, and the pass of a request that began before that.
func tripped() (*Breaker, Pass) {
	b := New(testConfig())
	fail(b, "a")
	early, _ := b.Allow("a")
	for range 4 {
		fail(b, "a")
	}
	return b, early
}

func TestOnlyATrialsOwnResultEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, outcome := range []retry.Verdict{retry.OK, retry.Unreachable, retry.Canceled} {
			b, early := tripped()
			forced, ok := b.Allow("a")
			if ok {
				t.Fatal("the circuit did not open")
			}
			time.Sleep(testConfig().OpenFor)
			trial, _ := b.Allow("a")
			b.Report("a", early, found(outcome))
			b.Report("a", forced, found(outcome))
			if got := b.State("a"); got != Open {
				t.Errorf("%v of requests that are no trial: the circuit is %v while the trial runs", outcome, got)
			}
			b.Report("a", trial, found(retry.OK))
			if got := b.State("a"); got != Trial {
				t.Errorf("%v of requests that are no trial: after one good trial of two the circuit is %v", outcome, got)
			}
		}
	})
}

func TestWhatBeganBeforeTheCircuitClosedDoesNotOpenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, early := tripped()
		time.Sleep(testConfig().OpenFor)
		for range 2 {
			serveOK(b, "a")
		}
		for range 100 {
			b.Report("a", early, found(retry.Broken))
		}
		if got := b.State("a"); got != Closed {
			t.Errorf("the circuit is %v", got)
		}
	})
}

// Where every answer takes longer than a trial may keep others waiting, the circuit closes all the same.
func TestLongTrialsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := tripped()
		time.Sleep(testConfig().OpenFor)
		var running []Pass
		for range 3 {
			trial, ok := b.Allow("a")
			if !ok {
				t.Fatal("no trial")
			}
			running = append(running, trial)
			time.Sleep(trialLease)
		}
		b.Report("a", running[0], found(retry.OK))
		b.Report("a", running[1], found(retry.OK))
		if got := b.State("a"); got != Closed {
			t.Errorf("after two good trials the circuit is %v", got)
		}
	})
}

func TestATrialThatNobodyReportsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		for range 5 {
			fail(b, "a")
		}
		time.Sleep(10e9)
		if !allows(b, "a") || allows(b, "a") {
			t.Fatal("want one trial")
		}
		time.Sleep(trialLease)
		if !allows(b, "a") {
			t.Error("a lost trial keeps the replica away for ever")
		}
	})
}

func TestPauseKeepsAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		b.Pause("a", 2e9)
		if allows(b, "a") {
			t.Error("allowed during the pause")
		}
		time.Sleep(2e9)
		if !allows(b, "a") || b.State("a") != Closed {
			t.Error("not allowed after the pause")
		}
		b.Pause("a", 1e18)
		time.Sleep(testConfig().MaxOpenFor)
		if !allows(b, "a") {
			t.Error("an absurd Retry-After must not keep a replica away for ever")
		}
	})
}

// A breaker under random traffic: an open circuit lets nobody through, a half-open one a single request at a time,
// one that was left alone closes or asks for a trial, and only faults open it.
func TestABreakerKeepsItsPromises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := []retry.Verdict{retry.OK, retry.OK, retry.OK, retry.ClientFault, retry.Refused, retry.Canceled, retry.Unavailable, retry.Unreachable, retry.Timeout, retry.Broken}
		opened, closed := 0, 0
		for seed := range uint64(100) {
			dice := rand.New(rand.NewPCG(seed, 2))
			cfg := Config{
				Failures: 2 + dice.IntN(4), Rate: 0.5, MinRequests: 5 + dice.IntN(10), Window: 10 * time.Second, OpenFor: time.Second, MaxOpenFor: 8 * time.Second, Trials: 1 + dice.IntN(3),
			}
			b := New(cfg)
			var flying []Pass
			bad := dice.Float64() // how bad a day the replica has
			faults := 0
			for step := range 2000 {
				before := b.State("r")
				switch {
				case dice.IntN(3) == 0 && len(flying) > 0: // one ends
					outcome := outcomes[dice.IntN(6)]
					if dice.Float64() < bad {
						outcome = outcomes[6+dice.IntN(4)]
						faults++
					}
					i := dice.IntN(len(flying))
					pass := flying[i]
					flying = slices.Delete(flying, i, i+1)
					b.Report("r", pass, found(outcome))
					after := b.State("r")
					if before == Closed && after == Open {
						opened++
						if !outcome.Fault() {
							t.Fatalf("seed %d, step %d: %v opened the circuit", seed, step, outcome)
						}
					}
					if before != Closed && after == Closed {
						closed++
						if outcome.Fault() || pass.trial == 0 {
							t.Fatalf("seed %d, step %d: %v of a request that was no trial (%v) closed the circuit", seed, step, outcome, pass)
						}
					}
				case dice.IntN(4) == 0: // time passes, less than a trial may take
					time.Sleep(time.Duration(dice.IntN(int(500 * time.Millisecond))))
				default: // one begins
					pass, allowed := b.Allow("r")
					if allowed != (before != Open) {
						t.Fatalf("seed %d, step %d: Allow() = %v while the circuit is %v", seed, step, allowed, before)
					}
					if allowed || dice.IntN(2) == 0 { // who has no other replica sends it all the same
						flying = append(flying, pass)
					}
					if before == Trial && b.State("r") != Open {
						t.Fatalf("seed %d, step %d: a second trial may begin beside the first", seed, step)
					}
				}
			}
			if faults == 0 && b.State("r") != Closed {
				t.Errorf("seed %d: open without a fault", seed)
			}
			time.Sleep(cfg.MaxOpenFor + trialLease)
			if b.State("r") == Open {
				t.Errorf("seed %d: left alone for longer than any pause, and still open", seed)
			}
		}
		if opened < 50 || closed < 50 {
			t.Errorf("the circuit opened %d times and closed %d times: the traffic shows too little", opened, closed)
		}
	})
}
func TestBreakerTakesNewBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		stricter := testConfig()
		stricter.Failures = 1
		b.Update(stricter)
		pass, _ := b.Allow("r")
		b.Report("r", pass, found(retry.Unreachable))
		if b.State("r") != Open {
			t.Error("one failure is not enough")
		}
	})
}

func TestRetainDropsTheCircuitsOfReplicasThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		for _, id := range []replica.ID{"stays", "goes"} {
			for range 5 {
				fail(b, id)
			}
		}
		b.Retain(func(id replica.ID) bool { return id == "stays" })
		if got := b.State("stays"); got != Open {
			t.Errorf("the circuit of a replica that stays is %v", got)
		}
		if got := b.State("goes"); got != Closed || len(b.circuits) != 1 {
			t.Errorf("the circuit of a replica that is gone is %v; %d circuits are kept", got, len(b.circuits))
		}
	})
}

func TestOpenedListsTheOpenCircuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(DefaultConfig())
		if got := b.Opened(); got != nil {
			t.Errorf("opened %v before anything happened", got)
		}
		b.Pause("paused", time.Second)
		for range 100 {
			pass, _ := b.Allow("failing")
			b.Report("failing", pass, found(retry.Unreachable))
		}
		pass, _ := b.Allow("fine")
		b.Report("fine", pass, found(retry.OK))
		got := b.Opened()
		slices.Sort(got)
		if !slices.Equal(got, []replica.ID{"failing", "paused"}) {
			t.Errorf("opened %v, want failing and paused", got)
		}
		for range 1000 { // as State has it, at every moment
			time.Sleep(100 * time.Millisecond)
			open := map[replica.ID]bool{}
			for _, id := range b.Opened() {
				open[id] = true
			}
			for _, id := range []replica.ID{"paused", "failing", "fine"} {
				if want := b.State(id) == Open; open[id] != want {
					t.Fatalf("%s: opened %v, state %v", id, open[id], b.State(id))
				}
			}
			if time.Now().UnixMilli()%700 == 0 {
				b.Allow("failing")
			}
		}
	})
}
