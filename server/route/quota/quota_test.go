package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func limiter(t testing.TB, c Config) *Limiter {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return New(c, Params{})
}

// begin admits and books one request; it returns the refusal, if there is one, after settling.
func begin(l *Limiter, tenant string, ask Ask) (*Grant, *Refusal) {
	g := &Grant{}
	if refusal := l.Admit(g, tenant); refusal != nil {
		return g, refusal
	}
	if refusal := l.Book(g, ask); refusal != nil {
		l.Settle(g, Usage{})
		return g, refusal
	}
	return g, nil
}

func TestRequestsPerSecondAndATrueRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{"a": {RequestsPerSecond: 2, RequestBurst: 3}})
		for i := range 3 {
			if _, refusal := begin(l, "a", Ask{}); refusal != nil {
				t.Fatalf("request %d of the burst: %+v", i, refusal)
			}
		}
		_, refusal := begin(l, "a", Ask{})
		if refusal == nil || refusal.Cause != CauseRequests || refusal.RetryAfter != 500*time.Millisecond {
			t.Fatalf("refusal %+v, want requests, again in 500ms", refusal)
		}
		time.Sleep(refusal.RetryAfter - time.Millisecond)
		if _, early := begin(l, "a", Ask{}); early == nil {
			t.Error("it is let in before retry-after has passed")
		}
		time.Sleep(time.Millisecond)
		if _, refusal := begin(l, "a", Ask{}); refusal != nil {
			t.Errorf("after retry-after: %+v", refusal)
		}
		if _, refusal := begin(l, "b", Ask{}); refusal != nil {
			t.Errorf("a tenant without an entry: %+v", refusal)
		}
	})
}

func TestTokensAreBookedByPredictionAndSettledByUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {TokensPerMinute: 6000}})
		left := func(want int) {
			t.Helper()
			s, _ := l.State(&Grant{tenant: l.account("a", time.Now())})
			if s.TokensLeft != want {
				t.Errorf("%d tokens are left, want %d", s.TokensLeft, want)
			}
		}
		g, _ := begin(l, "a", Ask{Prompt: 1000, MaxOutput: 100, Answers: 2, Generates: true})
		left(6000 - 1200)
		l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1000, Output: 500})
		left(6000 - 1500)
		l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 9999})
		left(6000 - 1500)
		g, _ = begin(l, "a", Ask{Prompt: 2000})
		l.Settle(g, Usage{})
		left(6000 - 1500)
		// Larger than the bucket: not now, but when it is full, and then others wait until it is paid for.
		_, refusal := begin(l, "a", Ask{Prompt: 12000})
		if refusal == nil || refusal.Cause != CauseTokens || refusal.RetryAfter != 15*time.Second {
			t.Fatalf("refusal %+v, want tokens, again in 15s", refusal)
		}
		time.Sleep(refusal.RetryAfter)
		g, refusal = begin(l, "a", Ask{Prompt: 12000})
		if refusal != nil {
			t.Fatalf("with the bucket full: %+v", refusal)
		}
		l.Settle(g, Usage{Charge: ChargeBooked})
		if _, refusal := begin(l, "a", Ask{Prompt: 1}); refusal == nil || refusal.RetryAfter != 60*time.Second+10*time.Millisecond {
			t.Errorf("refusal %+v, want one for 60.01s: 12000 tokens are two minutes' worth", refusal)
		}
	})
}

func TestInFlightAndReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{"a": {InFlight: 2}, "r": {ReservedTokens: 1000}})
		first, _ := begin(l, "a", Ask{})
		begin(l, "a", Ask{})
		if _, refusal := begin(l, "a", Ask{}); refusal == nil || refusal.Cause != CauseInFlight {
			t.Errorf("refusal %+v, want in_flight", refusal)
		}
		l.Settle(first, Usage{})
		if _, refusal := begin(l, "a", Ask{}); refusal != nil {
			t.Errorf("with room again: %+v", refusal)
		}
		lease, _ := begin(l, "r", Ask{Prompt: 900, Reserve: true})
		if _, refusal := begin(l, "r", Ask{Prompt: 200, Reserve: true}); refusal == nil || refusal.Cause != CauseReserved {
			t.Errorf("refusal %+v, want reserved_tokens", refusal)
		}
		if _, refusal := begin(l, "r", Ask{Prompt: 200}); refusal != nil {
			t.Errorf("a request that is no reservation: %+v", refusal)
		}
		l.Settle(lease, Usage{Charge: ChargeUsage, Prompt: 900, Output: 5000})
		if _, refusal := begin(l, "r", Ask{Prompt: 200, Reserve: true}); refusal != nil {
			t.Errorf("after the lease: %+v", refusal)
		}
	})
}

func TestPredictionLearnsHowLongATenantsAnswersAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {TokensPerMinute: 1 << 30}})
		for range 200 {
			g, _ := begin(l, "a", Ask{Generates: true})
			l.Settle(g, Usage{Charge: ChargeUsage, Output: 1000})
		}
		g, _ := begin(l, "a", Ask{Prompt: 10, Generates: true, MaxOutput: 32000})
		if g.booked < 1000 || g.booked > 1011 {
			t.Errorf("booked %v, want the prompt and about 1000, whatever may be asked for", g.booked)
		}
		if g, _ := begin(l, "a", Ask{Prompt: 10, Generates: true, MaxOutput: 20}); g.booked != 30 {
			t.Errorf("booked %v, want 30: no more than may come", g.booked)
		}
	})
}

func TestEntriesTakeFromDefaultWhatTheyLeaveOut(t *testing.T) {
	seven := 7
	c := Config{Default: {RequestsPerSecond: 5, TokensPerMinute: 60, InFlight: 9, Weight: 2, MaxPriority: &seven}, "a": {TokensPerMinute: 600, InFlight: unlimited, Weight: 3}}
	if got, want := c.of("a"), (limits{rate: 5, burst: 5, tokens: 10, tokenBurst: 600, weight: 3, maxPriority: 7, capped: true}); got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
	if got := (Config{}).of("x"); got != (limits{burst: 1, weight: 1}) || got.some() {
		t.Errorf("without settings %+v", got)
	}
	bad := Config{"": {}, "a": {InFlight: -2, Weight: math.Inf(1), RequestsPerSecond: math.NaN()}}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"": a tenant's name`, "a.in_flight: must be a number or -1, not -2", "not +Inf", "a.requests_per_second: must be a rate or -1, not NaN"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}

func TestUpdateKeepsWhatIsBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {RequestsPerSecond: 10, TokensPerMinute: 6000, InFlight: 5}})
		g, _ := begin(l, "a", Ask{Prompt: 5000})
		if err := l.Update(Config{Default: {InFlight: -7}}); err == nil {
			t.Fatal("wrong settings are taken")
		}
		if err := l.Update(Config{Default: {RequestsPerSecond: 1, RequestBurst: 2, TokensPerMinute: 12000, InFlight: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, refusal := begin(l, "a", Ask{}); refusal == nil || refusal.Cause != CauseInFlight {
			t.Errorf("refusal %+v: the one in flight counts on", refusal)
		}
		s, _ := l.State(g)
		if s.Tokens != 12000 || s.TokensLeft != 7000 || s.Requests != 2 || s.RequestsLeft != 1 {
			t.Errorf("state %+v, want 7000 of 12000 tokens and 1 of 2 requests", s)
		}
		l.Settle(g, Usage{})
		if s, _ := l.State(g); s.TokensLeft != 12000 {
			t.Errorf("%d tokens are left, want what was booked back", s.TokensLeft)
		}
		if err := l.Update(nil); err != nil || l.Active() {
			t.Errorf("without settings: %v, active %v", err, l.Active())
		}
		if w := l.Weight("a"); w != 1 {
			t.Errorf("weight %v", w)
		}
	})
}

// Item 9: random lives of requests of many tenants, settled in every way, twice and by many at once, leave nothing
// booked, and at no time is more in flight than may be.
func TestNothingIsBookedAtRest(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			c := Config{
				Default: {RequestsPerSecond: 20, TokensPerMinute: 60000, InFlight: 8, ReservedTokens: 4000},
				"big":   {RequestsPerSecond: unlimited, TokensPerMinute: 600000, InFlight: 30},
				"free":  {RequestsPerSecond: unlimited, TokensPerMinute: unlimited, InFlight: unlimited, ReservedTokens: unlimited},
			}
			l := limiter(t, c)
			names := []string{"big", "free", "x", "y", ""}
			var all sync.WaitGroup
			for worker := range 40 {
				all.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(worker)))
					for range 100 {
						g := &Grant{}
						if refusal := l.Admit(g, names[r.IntN(len(names))]); refusal != nil {
							time.Sleep(min(refusal.RetryAfter, 100*time.Millisecond))
							l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1 << 30}) // was never admitted: changes nothing
							continue
						}
						if r.IntN(5) > 0 {
							ask := Ask{Prompt: r.IntN(3000), MaxOutput: r.IntN(500), Answers: r.IntN(3), Generates: r.IntN(2) > 0, Reserve: r.IntN(3) == 0}
							if refusal := l.Book(g, ask); refusal != nil && refusal.RetryAfter <= 0 {
								t.Errorf("retry after %s", refusal.RetryAfter)
							}
						}
						time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
						if r.IntN(50) == 0 && l.Update(c) != nil {
							t.Error("Update fails")
						}
						u := Usage{Charge: Charge(r.IntN(3)), Prompt: r.IntN(3000), Output: r.IntN(1000)}
						var twice sync.WaitGroup
						for range 1 + r.IntN(3) {
							twice.Go(func() { l.Settle(g, u) })
						}
						twice.Wait()
						if refusal := l.Book(g, Ask{Prompt: 1}); refusal != nil {
							t.Error("a settled grant is booked again")
						}
					}
				})
			}
			all.Wait()
			for label, s := range l.shown() {
				if s.inFlight != 0 || s.reserved != 0 {
					t.Errorf("%q: %d in flight and %d tokens reserved at rest", label, s.inFlight, s.reserved)
				}
			}
			time.Sleep(time.Hour)
			for name, who := range l.tenants {
				who.fill(time.Now())
				if who.tokens.level != who.tokens.size {
					t.Errorf("%q: %v tokens after an hour's rest, want %v", name, who.tokens.level, who.tokens.size)
				}
			}
		})
	}
}

// The long run is exact: whatever is predicted, no more is taken than the rate allows, beyond one bucket.
func TestTheLongRunKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {TokensPerMinute: 60000}})
		r := rand.New(rand.NewPCG(1, 1))
		began, taken := time.Now(), 0
		for time.Since(began) < time.Hour {
			g, refusal := begin(l, "a", Ask{Prompt: 100 + r.IntN(2000), Generates: true})
			if refusal != nil {
				time.Sleep(refusal.RetryAfter)
				continue
			}
			u := Usage{Charge: ChargeUsage, Prompt: 100 + r.IntN(5000), Output: r.IntN(4000)}
			taken += u.Prompt + u.Output
			l.Settle(g, u)
		}
		if got := float64(taken) / 3600; got < 990 || got > 1000+60000.0/3600+5 {
			t.Errorf("%.1f tokens per second over an hour, want 1000 and at most a bucket more", got)
		}
	})
}

func TestTenantsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {InFlight: 1}})
		held, _ := begin(l, "tenant 100", Ask{})
		for i := range 3 * maxTenants {
			g, refusal := begin(l, fmt.Sprintf("tenant %d", i), Ask{})
			if refusal == nil {
				l.Settle(g, Usage{})
			}
		}
		if n := len(l.tenants); n > maxTenants {
			t.Errorf("%d accounts, want at most %d", n, maxTenants)
		}
		if _, refusal := begin(l, "tenant 100", Ask{}); refusal == nil {
			t.Error("an account with a request in flight was forgotten")
		}
		l.Settle(held, Usage{})
		if n := len(l.shown()); n > maxLabels+1 {
			t.Errorf("%d labels in metrics, want at most %d", n, maxLabels+1)
		}
		for i := range maxTenants + 10 { // all busy: the rest share one account
			begin(l, fmt.Sprintf("busy %d", i), Ask{})
		}
		if _, refusal := begin(l, "one more", Ask{}); refusal == nil || len(l.tenants) > maxTenants {
			t.Errorf("refusal %+v with %d accounts", refusal, len(l.tenants))
		}
		var admitted int64
		for _, s := range l.shown() {
			admitted += s.admitted
		}
		if want := int64(3*maxTenants + maxTenants - maxLabels + 1); admitted != want {
			t.Errorf("%d requests are counted, want %d: those of forgotten accounts too", admitted, want)
		}
	})
}

func TestHeadersAreOpenAIs(t *testing.T) {
	h := http.Header{}
	State{Requests: 3, RequestsLeft: 1, RequestsReset: time.Second, Tokens: 6000, TokensLeft: 0, TokensReset: 90 * time.Second}.Set(h)
	want := map[string]string{
		"x-ratelimit-limit-requests": "3", "x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1s",
		"x-ratelimit-limit-tokens": "6000", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30s",
	}
	for name, value := range want {
		if got := h.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	none := http.Header{}
	State{}.Set(none)
	if len(none) != 0 {
		t.Errorf("headers %v without limits", none)
	}
}

func BenchmarkRequest(b *testing.B) {
	for name, c := range map[string]Config{"off": nil, "on": {Default: {RequestsPerSecond: 1 << 39, TokensPerMinute: 1 << 40, InFlight: 1 << 30}}} {
		b.Run(name, func(b *testing.B) {
			var owner Owner = limiter(b, c)
			b.ReportAllocs()
			for b.Loop() {
				if !owner.Active() {
					continue
				}
				g := &Grant{}
				if owner.Admit(g, "a") != nil || owner.Book(g, Ask{Prompt: 1000, Generates: true}) != nil {
					b.Fatal("refused")
				}
				owner.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1000, Output: 10})
			}
		})
	}
}

// Reports of external callers release at most a share of what the tenant is charged.
func TestClaimsReleaseAShareOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {TokensPerMinute: 6000}})
		began, booked := time.Now(), 0
		for time.Since(began) < 10*time.Minute {
			g, refusal := begin(l, "a", Ask{Prompt: 300, Reserve: true})
			if refusal != nil {
				time.Sleep(refusal.RetryAfter)
				continue
			}
			booked += 300
			l.Settle(g, Usage{Charge: ChargeClaimed})
		}
		if most := 1.06 * (6000*10 + 6000); float64(booked) > most {
			t.Errorf("%d tokens in ten minutes, want at most %v: all were claimed back", booked, most)
		}
		if s := l.shown()["a"]; s.unrefunded < 0.9*float64(booked) {
			t.Errorf("%v of %d tokens are counted as not refunded", s.unrefunded, booked)
		}
		g, _ := begin(l, "b", Ask{Prompt: 100})
		l.Settle(g, Usage{Charge: ChargeClaimed, Prompt: 100, Output: 900})
		if s, _ := l.State(g); s.TokensLeft != 5000 {
			t.Errorf("%d tokens are left, want 5000: more than was booked is charged", s.TokensLeft)
		}
	})
}

// Whatever is reported or booked, no tenant waits longer than an hour.
func TestNoTenantIsLockedOutForLongerThanAnHour(t *testing.T) {
	for name, take := range map[string]func(*Limiter){
		"usage": func(l *Limiter) {
			g, _ := begin(l, "a", Ask{Prompt: 1})
			l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1e12, Output: math.MaxInt})
		},
		"claim": func(l *Limiter) {
			g, _ := begin(l, "a", Ask{Prompt: 1})
			l.Settle(g, Usage{Charge: ChargeClaimed, Prompt: math.MaxInt, Output: math.MaxInt})
		},
		"booking": func(l *Limiter) {
			g, _ := begin(l, "a", Ask{Prompt: math.MaxInt, Generates: true, Answers: math.MaxInt})
			l.Settle(g, Usage{Charge: ChargeBooked})
		},
		"many": func(l *Limiter) {
			var all []*Grant
			for range 50 {
				g, _ := begin(l, "a", Ask{Prompt: 1})
				all = append(all, g)
			}
			for _, g := range all {
				l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1e9})
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, Config{Default: {TokensPerMinute: 6000}})
			take(l)
			time.Sleep(time.Hour + 10*time.Millisecond)
			if _, refusal := begin(l, "a", Ask{Prompt: 1}); refusal != nil {
				t.Errorf("%s: after an hour: %+v", name, refusal)
			}
		})
	}
}

func TestNegativeUsageGivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, Config{Default: {TokensPerMinute: 6000}})
		g, _ := begin(l, "a", Ask{Prompt: 1000})
		l.Settle(g, Usage{Charge: ChargeUsage, Prompt: math.MinInt, Output: 1000, Unbelieved: math.MinInt})
		if s, _ := l.State(g); s.TokensLeft != 5000 {
			t.Errorf("%d tokens are left, want 5000", s.TokensLeft)
		}
	})
}

// A request that continues at another router is no request of this one any more: its booking and its count come back, also into a lease.
func TestARequestThatContinuesElsewhereIsNotCounted(t *testing.T) {
	l := New(Config{Default: {RequestsPerSecond: .001, TokensPerMinute: 60}}, Params{})
	for range 3 {
		var g Grant
		if refusal := l.Admit(&g, "a"); refusal != nil {
			t.Fatal(refusal.Message())
		}
		if refusal := l.Book(&g, Ask{Prompt: 10, MaxOutput: 10, Generates: true}); refusal != nil {
			t.Fatal(refusal.Message())
		}
		l.Settle(&g, Usage{Charge: ChargeUsage, Output: 2, Elsewhere: true})
		l.Settle(&g, Usage{Elsewhere: true}) // once
	}
	var g, other Grant
	if refusal := l.Admit(&g, "a"); refusal != nil {
		t.Fatal(refusal.Message())
	}
	if s, ok := l.State(&g); !ok || s.TokensLeft < 53 || s.TokensLeft > 55 {
		t.Errorf("%d tokens are left of 60 after 3 times 2, %v", s.TokensLeft, ok)
	}
	l.Settle(&g, Usage{})
	if refusal := l.Admit(&other, "a"); refusal == nil {
		t.Error("a request that failed here is not counted")
	}
}
