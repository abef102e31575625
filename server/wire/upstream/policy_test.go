package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// clock is a time that only tests move.
type clock struct{ at time.Time }

func newClock() *clock                       { return &clock{time.Unix(1_800_000_000, 0)} }
func (c *clock) now() time.Time              { return c.at }
func (c *clock) pass(d time.Duration)        { c.at = c.at.Add(d) }
func fail(b *Breaker, id replica.ID) bool    { return attempt(b, id, OutcomeUnreachable) }
func serveOK(b *Breaker, id replica.ID) bool { return attempt(b, id, OutcomeOK) }

func attempt(b *Breaker, id replica.ID, o Outcome) bool {
	pass, ok := b.Allow(id)
	if ok {
		b.Report(id, pass, o)
	}
	return ok
}

// allows asks for a request whose result is never reported.
func allows(b *Breaker, id replica.ID) bool {
	_, ok := b.Allow(id)
	return ok
}

func TestOutcomes(t *testing.T) {
	for status, want := range map[int]Outcome{200: OutcomeOK, 204: OutcomeOK, 307: OutcomeOK, 400: OutcomeClientFault, 404: OutcomeClientFault, 422: OutcomeClientFault,
		429: OutcomeRefused, 500: OutcomeEngineError, 501: OutcomeEngineError, 502: OutcomeGateway, 503: OutcomeUnavailable, 504: OutcomeGateway} {
		got := Classify(&Response{Status: status}, nil)
		if got != want {
			t.Errorf("%d: got %v, want %v", status, got, want)
		}
		if status >= 400 && status < 500 && got.Fault() {
			t.Errorf("%d counts against the replica", status)
		}
		retry := status == 429 || status == 502 || status == 503 || status == 504
		if got.Retryable() != retry {
			t.Errorf("%d: retryable %v, want %v", status, got.Retryable(), retry)
		}
	}
	if o := Classify(nil, fmt.Errorf("wrapped: %w", context.Canceled)); o != OutcomeCanceled || o.Fault() || o.Retryable() {
		t.Errorf("canceled: got %v", o)
	}
	if o := Classify(nil, errors.New("other")); o != OutcomeUnreachable {
		t.Errorf("unknown error: got %v", o)
	}
}

// ahead is a context whose deadline has passed and which has not been told.
type ahead struct{ context.Context }

func (ahead) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

func TestTheCallersDeadlineIsNoFaultOfTheReplica(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want Outcome
	}{
		"the caller's time is over": {ahead{context.Background()}, timeout, OutcomeCanceled},
		"another failure then":      {ahead{context.Background()}, &net.OpError{Op: "dial", Err: os.ErrPermission}, OutcomeUnreachable},
		"the dial took too long":    {context.Background(), timeout, OutcomeUnreachable},
	} {
		if got := Classify(nil, failed(c.ctx, "r", PhaseDial, c.err)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"5": 5 * time.Second, " 0.5 ": 500 * time.Millisecond, "-3": 0, "1e99": time.Hour,
		"Thu, 01 Jan 2026 00:00:30 GMT": 30 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0} {
		if got, ok := RetryAfter(http.Header{"Retry-After": {value}}, now); !ok || got != want {
			t.Errorf("%q: got %v, %v; want %v", value, got, ok, want)
		}
	}
	for _, value := range []string{"", "soon", "NaN"} {
		if got, ok := RetryAfter(http.Header{"Retry-After": {value}}, now); ok {
			t.Errorf("%q: got %v", value, got)
		}
	}
}

func TestBudgetBoundsRetriesToAShare(t *testing.T) {
	time := newClock()
	b := NewBudget(RetryConfig{Ratio: 0.2, MinPerSecond: 1}, time.now)
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
	time.pass(3e9)
	if first, second := b.Withdraw(), b.Withdraw(); !first || !second {
		t.Error("the minimum rate is not granted")
	}
	time.pass(3600e9)
	saved := 0
	for b.Withdraw() {
		saved++
	}
	if saved > 20 {
		t.Errorf("an hour of rest saved up %d retries", saved)
	}
}

func breakerFor(time *clock) *Breaker {
	return NewBreaker(DefaultConfig().Breaker, time.now)
}

func TestBreakerOpensTriesAndCloses(t *testing.T) {
	time := newClock()
	b := breakerFor(time)
	for i := range 5 {
		if !fail(b, "a") {
			t.Fatalf("open after %d failures", i)
		}
	}
	if allows(b, "a") || b.State("a") != BreakerOpen || b.State("b") != BreakerClosed || !allows(b, "b") {
		t.Fatal("five failures in a row must open one replica's circuit")
	}
	time.pass(DefaultConfig().Breaker.OpenFor)
	trial, ok := b.Allow("a")
	if !ok {
		t.Fatal("no trial after the pause")
	}
	if allows(b, "a") {
		t.Fatal("two trials at once")
	}
	b.Report("a", trial, OutcomeUnavailable)
	time.pass(DefaultConfig().Breaker.OpenFor)
	if allows(b, "a") {
		t.Fatal("a failed trial must double the pause")
	}
	time.pass(DefaultConfig().Breaker.OpenFor)
	if !attempt(b, "a", OutcomeCanceled) {
		t.Fatal("no second trial")
	}
	if !serveOK(b, "a") || b.State("a") != BreakerTrial || !serveOK(b, "a") || b.State("a") != BreakerClosed {
		t.Errorf("two good trials must close it; state %v", b.State("a"))
	}
}

func TestBreakerIgnoresTheClientsFaults(t *testing.T) {
	b := breakerFor(newClock())
	for range 100 {
		for _, o := range []Outcome{OutcomeClientFault, OutcomeRefused, OutcomeCanceled} {
			if !attempt(b, "a", o) {
				t.Fatalf("opened by %v", o)
			}
		}
	}
}

func TestBreakerOpensOnARateOfFailures(t *testing.T) {
	b := breakerFor(newClock())
	n := 0
	for ; n < 100; n++ {
		outcome := OutcomeOK
		if n%2 == 1 {
			outcome = OutcomeEngineError
		}
		if !attempt(b, "a", outcome) {
			break
		}
	}
	if n < 19 || n > 22 {
		t.Errorf("opened after %d requests of which half failed, want 20", n)
	}
}

func TestBreakerForgetsOldFailures(t *testing.T) {
	time := newClock()
	b := breakerFor(time)
	for range 100 {
		fail(b, "a")
		serveOK(b, "a")
		serveOK(b, "a")
		time.pass(3e9)
	}
	if b.State("a") != BreakerClosed {
		t.Error("one failure in three, spread out, must not open it")
	}
}

// tripped is a breaker whose circuit has just opened, and the pass of a request that began before that.
func tripped(time *clock) (*Breaker, Pass) {
	b := breakerFor(time)
	fail(b, "a")
	early, _ := b.Allow("a")
	for range 4 {
		fail(b, "a")
	}
	return b, early
}

func TestOnlyATrialsOwnResultEndsIt(t *testing.T) {
	for _, outcome := range []Outcome{OutcomeOK, OutcomeUnreachable, OutcomeCanceled} {
		time := newClock()
		b, early := tripped(time)
		forced, ok := b.Allow("a")
		if ok {
			t.Fatal("the circuit did not open")
		}
		time.pass(DefaultConfig().Breaker.OpenFor)
		trial, _ := b.Allow("a")
		b.Report("a", early, outcome)
		b.Report("a", forced, outcome)
		if got := b.State("a"); got != BreakerOpen {
			t.Errorf("%v of requests that are no trial: the circuit is %v while the trial runs", outcome, got)
		}
		b.Report("a", trial, OutcomeOK)
		if got := b.State("a"); got != BreakerTrial {
			t.Errorf("%v of requests that are no trial: after one good trial of two the circuit is %v", outcome, got)
		}
	}
}

func TestWhatBeganBeforeTheCircuitClosedDoesNotOpenIt(t *testing.T) {
	time := newClock()
	b, early := tripped(time)
	time.pass(DefaultConfig().Breaker.OpenFor)
	for range 2 {
		serveOK(b, "a")
	}
	for range 100 {
		b.Report("a", early, OutcomeBroken)
	}
	if got := b.State("a"); got != BreakerClosed {
		t.Errorf("the circuit is %v", got)
	}
}

// Where every answer takes longer than a trial may keep others waiting, the circuit closes all the same.
func TestLongTrialsCount(t *testing.T) {
	time := newClock()
	b, _ := tripped(time)
	time.pass(DefaultConfig().Breaker.OpenFor)
	var running []Pass
	for range 3 {
		trial, ok := b.Allow("a")
		if !ok {
			t.Fatal("no trial")
		}
		running = append(running, trial)
		time.pass(trialLease)
	}
	b.Report("a", running[0], OutcomeOK)
	b.Report("a", running[1], OutcomeOK)
	if got := b.State("a"); got != BreakerClosed {
		t.Errorf("after two good trials the circuit is %v", got)
	}
}

func TestATrialThatNobodyReportsEnds(t *testing.T) {
	time := newClock()
	b := breakerFor(time)
	for range 5 {
		fail(b, "a")
	}
	time.pass(10e9)
	if !allows(b, "a") || allows(b, "a") {
		t.Fatal("want one trial")
	}
	time.pass(trialLease)
	if !allows(b, "a") {
		t.Error("a lost trial keeps the replica away for ever")
	}
}

func TestPauseKeepsAwayForAWhile(t *testing.T) {
	time := newClock()
	b := breakerFor(time)
	b.Pause("a", 2e9)
	if allows(b, "a") {
		t.Error("allowed during the pause")
	}
	time.pass(2e9)
	if !allows(b, "a") || b.State("a") != BreakerClosed {
		t.Error("not allowed after the pause")
	}
	b.Pause("a", 1e18)
	time.pass(DefaultConfig().Breaker.MaxOpenFor)
	if !allows(b, "a") {
		t.Error("an absurd Retry-After must not keep a replica away for ever")
	}
}

func TestPins(t *testing.T) {
	time := newClock()
	p := NewPins(PinsConfig{Max: 2, TTL: 60e9}, time.now)
	p.Put("", "a", "r1")
	p.Put("", "b", "r2")
	p.Get("", "a")
	p.Put("", "c", "r3")
	p.Put("", "", "r4")
	for id, want := range map[string]replica.ID{"a": "r1", "b": "", "c": "r3", "": ""} {
		if got, owner := p.Get("", id); got != want || (owner == OwnerSelf) != (want != "") {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
	time.pass(61e9)
	if _, owner := p.Get("", "a"); owner != OwnerUnknown {
		t.Error("remembered for longer than the TTL")
	}
}

func TestPinsHaveOwners(t *testing.T) {
	time := newClock()
	p := NewPins(PinsConfig{Max: 2, TTL: 60e9}, time.now)
	p.Put("team-a", "r", "at-a")
	p.Put("team-b", "r", "at-b") // the first owner stays
	for _, tc := range []struct {
		tenant string
		at     replica.ID
		owner  Owner
	}{{"team-a", "at-a", OwnerSelf}, {"team-b", "", OwnerOther}, {"", "at-a", OwnerSelf}} {
		if at, owner := p.Get(tc.tenant, "r"); at != tc.at || owner != tc.owner {
			t.Errorf("tenant %q: %q, %v", tc.tenant, at, owner)
		}
	}
	time.pass(61e9)
	p.Put("team-b", "r", "at-b")
	if at, owner := p.Get("team-b", "r"); at != "at-b" || owner != OwnerSelf {
		t.Errorf("after the first owner's time: %q, %v", at, owner)
	}
}

func TestTheConfigurationIsChecked(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{}).Validate(); err == nil {
		t.Error("an empty configuration passes")
	}
}
