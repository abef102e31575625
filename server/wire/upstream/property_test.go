package upstream

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Whatever happens in whatever order, retries stay within what was earned.
func TestABudgetNeverGrantsMoreThanWasEarned(t *testing.T) {
	for seed := range uint64(50) {
		dice := rand.New(rand.NewPCG(seed, 1))
		clock := newClock()
		cfg := RetryConfig{Ratio: dice.Float64(), MinPerSecond: float64(dice.IntN(10))}
		b := NewBudget(cfg, clock.now)
		earned, granted := capacity(cfg), 0
		for step := range 5000 {
			switch dice.IntN(4) {
			case 0:
				b.Deposit()
				earned += cfg.Ratio
			case 1:
				d := time.Duration(dice.IntN(int(time.Second)))
				clock.pass(d)
				earned += cfg.MinPerSecond * d.Seconds()
			default:
				if b.Withdraw() {
					granted++
				}
			}
			if float64(granted) > earned+1e-6 {
				t.Fatalf("seed %d, step %d: %d retries were granted and %.2f earned", seed, step, granted, earned)
			}
		}
		if granted == 0 {
			t.Errorf("seed %d: no retry was ever granted", seed)
		}
	}
}

// A breaker under random traffic: an open circuit lets nobody through, a half-open one a single request at a time,
// one that was left alone closes or asks for a trial, and only faults open it.
func TestABreakerKeepsItsPromises(t *testing.T) {
	outcomes := []Outcome{OutcomeOK, OutcomeOK, OutcomeOK, OutcomeClientFault, OutcomeRefused, OutcomeCanceled, OutcomeUnavailable, OutcomeUnreachable, OutcomeTimeout, OutcomeBroken}
	opened, closed := 0, 0
	for seed := range uint64(100) {
		dice := rand.New(rand.NewPCG(seed, 2))
		clock, cfg := newClock(), BreakerConfig{
			Failures: 2 + dice.IntN(4), Rate: 0.5, MinRequests: 5 + dice.IntN(10), Window: 10 * time.Second, OpenFor: time.Second, MaxOpenFor: 8 * time.Second, Trials: 1 + dice.IntN(3),
		}
		b := NewBreaker(cfg, clock.now)
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
				b.Report("r", pass, outcome)
				after := b.State("r")
				if before == BreakerClosed && after == BreakerOpen {
					opened++
					if !outcome.Fault() {
						t.Fatalf("seed %d, step %d: %v opened the circuit", seed, step, outcome)
					}
				}
				if before != BreakerClosed && after == BreakerClosed {
					closed++
					if outcome.Fault() || pass.trial == 0 {
						t.Fatalf("seed %d, step %d: %v of a request that was no trial (%v) closed the circuit", seed, step, outcome, pass)
					}
				}
			case dice.IntN(4) == 0: // time passes, less than a trial may take
				clock.pass(time.Duration(dice.IntN(int(500 * time.Millisecond))))
			default: // one begins
				pass, allowed := b.Allow("r")
				if allowed != (before != BreakerOpen) {
					t.Fatalf("seed %d, step %d: Allow() = %v while the circuit is %v", seed, step, allowed, before)
				}
				if allowed || dice.IntN(2) == 0 { // who has no other replica sends it all the same
					flying = append(flying, pass)
				}
				if before == BreakerTrial && b.State("r") != BreakerOpen {
					t.Fatalf("seed %d, step %d: a second trial may begin beside the first", seed, step)
				}
			}
		}
		if faults == 0 && b.State("r") != BreakerClosed {
			t.Errorf("seed %d: open without a fault", seed)
		}
		clock.pass(cfg.MaxOpenFor + trialLease)
		if b.State("r") == BreakerOpen {
			t.Errorf("seed %d: left alone for longer than any pause, and still open", seed)
		}
	}
	if opened < 50 || closed < 50 {
		t.Errorf("the circuit opened %d times and closed %d times: the traffic shows too little", opened, closed)
	}
}
