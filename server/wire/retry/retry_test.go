package retry

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"5": 5 * time.Second, " 0.5 ": 500 * time.Millisecond, "-3": 0, "1e99": time.Hour,
		"Thu, 01 Jan 2026 00:00:30 GMT": 30 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0} {
		if got, ok := After(http.Header{"Retry-After": {value}}, now); !ok || got != want {
			t.Errorf("%q: got %v, %v; want %v", value, got, ok, want)
		}
	}
	for _, value := range []string{"", "soon", "NaN"} {
		if got, ok := After(http.Header{"Retry-After": {value}}, now); ok {
			t.Errorf("%q: got %v", value, got)
		}
	}
}

func TestBudgetBoundsRetriesToAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(Config{Ratio: 0.2, MinPerSecond: 1})
		for b.Withdraw() {
		}
		granted := 0
		for range 1000 {
			b.Deposit()
			if b.Withdraw() {
				granted++
			}
		}
		if granted < 199 || granted > 201 {
			t.Errorf("1000 requests paid for %d retries, want 200", granted)
		}
		for b.Withdraw() {
		}
		time.Sleep(3e9)
		if first, second := b.Withdraw(), b.Withdraw(); !first || !second {
			t.Error("the minimum rate is not granted")
		}
		time.Sleep(3600e9)
		saved := 0
		for b.Withdraw() {
			saved++
		}
		if saved > 20 {
			t.Errorf("an hour of rest saved up %d retries", saved)
		}
	})
}

// Whatever happens in whatever order, retries stay within what was earned.
func TestABudgetNeverGrantsMoreThanWasEarned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(50) {
			dice := rand.New(rand.NewPCG(seed, 1))
			cfg := Config{Ratio: dice.Float64(), MinPerSecond: float64(dice.IntN(10))}
			b := NewBudget(cfg)
			earned, granted := capacity(cfg), 0
			for step := range 5000 {
				switch dice.IntN(4) {
				case 0:
					b.Deposit()
					earned += cfg.Ratio
				case 1:
					d := time.Duration(dice.IntN(int(time.Second)))
					time.Sleep(d)
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
	})
}

func TestBudgetTakesNewBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(Config{Attempts: 3, Ratio: 1, MinPerSecond: 10})
		budget.Update(Config{Attempts: 3})
		if !budget.Withdraw() || budget.Withdraw() {
			t.Error("the smaller budget has not just the one retry that it always has")
		}
	})
}

func TestSuspectsLeaveHalfOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(Config{Ratio: 0.2, MinPerSecond: 1})
		spare, rest := 0, 0
		for b.WithdrawSpare() {
			spare++
		}
		for b.Withdraw() {
			rest++
		}
		if spare != rest || spare == 0 {
			t.Errorf("suspects got %d retries, others %d", spare, rest)
		}
	})
}

func TestVerdictsHaveACauseAndOneName(t *testing.T) {
	names := map[string]bool{}
	for _, v := range Verdicts() {
		if v.String() == "" || names[v.String()] {
			t.Errorf("verdict %d is named %q", v, v)
		}
		names[v.String()] = true
		if v.Fault() != (v.Fault() && v.Cause().Against()) || (v == OK || v == Moved) != (v.Cause() == CauseNone) {
			t.Errorf("%v: fault %v, cause %v", v, v.Fault(), v.Cause())
		}
		if (v.Follows() || v.Gone()) && !v.Fault() && v != Moved {
			t.Errorf("%v is no fault of a replica and yet follows or is gone", v)
		}
		if f := Find(v, Origin{}); f.Against() != v.Fault() || f.Sure == v.Follows() || f.Exonerates() {
			t.Errorf("%v: %+v", v, f)
		}
	}
	for _, c := range Causes() {
		if c.String() == "unknown" || names[c.String()] {
			t.Errorf("cause %d is named %q", c, c)
		}
		names[c.String()] = true
	}
	if Verdict(200).String() != "unknown" || Cause(200).String() != "unknown" || Verdict(200).Fault() {
		t.Error("what is unknown has a name")
	}
}
