package quota

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// firstOutput is the number of output tokens to assume before a tenant has had an answer.
	firstOutput = 256
	// firstTime is the time of a request to assume before one has ended.
	firstTime = time.Second
	// memory is how many requests the two means remember, about.
	memory = 16
	// shortest and longest bound the Retry-After of a refused request.
	shortest = 10 * time.Millisecond
	longest  = time.Hour
	// refundShare is the share of a tenant's tokens that its callers' own reports may release, and of its bucket that it may save up.
	refundShare = 0.05
)

// tenant is the account of one tenant.
type tenant struct {
	label string // in metrics

	mu       sync.Mutex
	limits   limits
	requests *rate.Limiter // nil: no limit
	level    float64       // tokens that may be taken; below zero when more were taken than predicted
	at       time.Time     // of level
	inFlight int
	reserved int
	refunds  float64 // tokens that claims may release
	output   float64 // mean of the answers' tokens
	took     float64 // mean of the requests' times, in seconds
	counted  counts
	closed   bool // forgotten: callers that still have it must look it up again
}

// counts are what metrics show of a tenant.
type counts struct {
	admitted int64
	refused  [causes]int64
	tokens   float64
	// unbelieved tokens were reported and cannot have been taken, unrefunded ones were claimed back without evidence.
	unbelieved, unrefunded float64
}

func newTenant(label string, l limits, now time.Time) *tenant {
	t := &tenant{label: label, limits: l, level: l.tokenBurst, at: now, output: firstOutput, took: firstTime.Seconds()}
	if l.rate > 0 {
		t.requests = rate.NewLimiter(rate.Limit(l.rate), l.burst)
	}
	return t
}

// limit replaces the limits. It keeps what was taken.
func (t *tenant) limit(l limits, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refill(now)
	switch {
	case l.rate <= 0:
		t.requests = nil
	case t.requests == nil:
		t.requests = rate.NewLimiter(rate.Limit(l.rate), l.burst)
	default:
		taken := float64(t.requests.Burst()) - t.requests.TokensAt(now)
		t.requests = rate.NewLimiter(rate.Limit(l.rate), l.burst)
		if n := min(l.burst, int(math.Ceil(taken))); n > 0 {
			t.requests.AllowN(now, n)
		}
	}
	if old := t.limits; old.tokens > 0 {
		t.level += l.tokenBurst - old.tokenBurst
	} else {
		t.level = l.tokenBurst
	}
	t.limits = l
}

// refill brings level up to date. mu is held.
func (t *tenant) refill(now time.Time) {
	if d := now.Sub(t.at); d > 0 {
		t.level = min(t.limits.tokenBurst, t.level+d.Seconds()*t.limits.tokens)
		t.at = now
	}
}

// admit returns false if the account was closed since it was looked up.
func (t *tenant) admit(g *Grant, now time.Time) (_ *Refusal, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	if limit := t.limits.inFlight; limit > 0 && t.inFlight >= limit {
		return t.refuse(CauseInFlight, t.nextEnd(), now), true
	}
	if t.requests != nil && !t.requests.AllowN(now, 1) {
		r := t.requests.ReserveN(now, 1) // to see how long it would wait
		wait := r.DelayFrom(now)
		r.CancelAt(now)
		return t.refuse(CauseRequests, wait, now), true
	}
	t.inFlight++
	t.counted.admitted++
	g.tenant, g.began = t, now
	return nil, true
}

func (t *tenant) book(g *Grant, ask Ask, now time.Time) *Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limits.tokens <= 0 && (t.limits.reserved <= 0 || !ask.Reserve) {
		return nil
	}
	need := float64(max(0, ask.Prompt))
	if ask.Generates {
		each := t.output
		if ask.MaxOutput > 0 {
			each = min(each, float64(ask.MaxOutput))
		}
		need += each * float64(max(1, ask.Answers))
	}
	need = math.Ceil(need)
	if t.limits.tokens > 0 {
		need = min(need, t.limits.tokenBurst+t.limits.debt())
	}
	tokens := int(min(need, maxCount))
	if ask.Reserve && t.limits.reserved > 0 && t.reserved > 0 && t.reserved+tokens > t.limits.reserved {
		return t.refuse(CauseReserved, t.nextEnd(), now)
	}
	if t.limits.tokens > 0 {
		t.refill(now)
		// A request larger than the bucket is admitted when the bucket is full, and leaves it below zero.
		if lacks := min(need, t.limits.tokenBurst) - t.level; lacks > 0 {
			return t.refuse(CauseTokens, seconds(lacks/t.limits.tokens), now)
		}
		t.level -= need
		g.booked = need
	}
	if ask.Reserve {
		t.reserved += tokens
		g.reserved = tokens
	}
	return nil
}

// settle ends the grant; its caller makes sure that this happens once.
func (t *tenant) settle(g *Grant, u Usage, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight--
	t.reserved -= g.reserved
	actual := g.booked
	switch u.Charge {
	case ChargeNothing:
		actual = 0
	case ChargeUsage:
		actual = float64(max(0, u.Prompt)) + float64(max(0, u.Output))
	case ChargeBooked:
	case ChargeClaimed:
		actual = t.claim(g.booked, float64(max(0, u.Prompt))+float64(max(0, u.Output)))
	}
	t.counted.tokens += actual
	t.counted.unbelieved += float64(max(0, u.Unbelieved))
	if t.limits.tokens > 0 {
		t.refill(now)
		t.level = min(t.limits.tokenBurst, max(t.level+g.booked-actual, -t.limits.debt()))
		t.refunds = min(t.refunds+refundShare*actual, refundShare*t.limits.tokenBurst)
	}
	if u.Charge != ChargeNothing {
		t.took += (now.Sub(g.began).Seconds() - t.took) / memory
	}
	if u.Charge == ChargeUsage && u.Output > 0 {
		t.output += (float64(u.Output) - t.output) / memory
	}
}

// claim is what is charged for a booking of which a caller claims that it took other than what was booked. mu is held.
func (t *tenant) claim(booked, claimed float64) float64 {
	less := booked - claimed
	if less <= 0 {
		return claimed
	}
	refund := min(less, t.refunds)
	t.refunds -= refund
	t.counted.unrefunded += less - refund
	return booked - refund
}

// nextEnd is when one of the requests in flight is expected to end. mu is held.
func (t *tenant) nextEnd() time.Duration {
	return seconds(t.took / float64(max(1, t.inFlight)))
}

// refuse counts a refusal. mu is held.
func (t *tenant) refuse(cause Cause, wait time.Duration, now time.Time) *Refusal {
	t.counted.refused[cause]++
	return &Refusal{Cause: cause, RetryAfter: min(max(wait, shortest), longest), State: t.state(now)}
}

// state is the account as headers show it. mu is held.
func (t *tenant) state(now time.Time) State {
	var s State
	if t.requests != nil {
		s.Requests = t.limits.burst
		left := t.requests.TokensAt(now)
		s.RequestsLeft = max(0, int(left))
		s.RequestsReset = seconds((float64(s.Requests) - left) / t.limits.rate).Round(time.Millisecond)
	}
	if t.limits.tokens > 0 {
		t.refill(now)
		s.Tokens = int(t.limits.tokenBurst)
		s.TokensLeft = max(0, int(t.level))
		s.TokensReset = seconds((t.limits.tokenBurst - t.level) / t.limits.tokens).Round(time.Millisecond)
	}
	return s
}

// close ends the account when nothing is lost by that.
func (t *tenant) close(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refill(now)
	t.closed = t.inFlight == 0 && t.level >= t.limits.tokenBurst && (t.requests == nil || t.requests.TokensAt(now) >= float64(t.limits.burst))
	return t.closed
}

func seconds(s float64) time.Duration {
	return time.Duration(min(max(s, 0), longest.Seconds()*24) * float64(time.Second))
}
