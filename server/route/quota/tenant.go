package quota

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
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

// tenant is the account of one tenant: all of it, or this router's part of it in a fleet.
type tenant struct {
	label string // in metrics

	mu sync.Mutex // guards the rest
	account
	refunds float64 // tokens that claims may release
	output  float64 // mean of the answers' tokens
	counted counts
	closed  bool  // forgotten: callers that still have it must look it up again
	part    *part // nil: the router is alone
}

// counts are what metrics show of a tenant.
type counts struct {
	admitted int64
	refused  [causes]int64
	tokens   float64
	// unbelieved tokens were reported and cannot have been taken, unrefunded ones were claimed back without evidence.
	unbelieved, unrefunded float64
	// alone counts grants without the owner's answer.
	alone int64
}

func newTenant(name, label string, l limits, now time.Time) *tenant {
	t := &tenant{label: label, account: account{name: name, took: firstTime.Seconds()}, output: firstOutput}
	t.limit(l, now)
	return t
}

// limit replaces the limits. It keeps what was taken.
func (t *tenant) limit(l limits, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	share := t.share()
	t.requests.resize(l.rate*share, float64(l.burst)*share, now)
	t.tokens.resize(l.tokens*share, l.tokenBurst*share, now)
	t.limits = l
}

// admit returns false if the account was closed since it was looked up.
func (t *tenant) admit(g *Grant, fleet Fleet, now time.Time) (_ *Refusal, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	if refusal := t.take(demand{requests: 1, inFlight: 1}, fleet, now); refusal != nil {
		return refusal, true
	}
	t.inFlight++
	t.counted.admitted++
	g.tenant, g.began = t, now
	return nil, true
}

func (t *tenant) book(g *Grant, ask Ask, fleet Fleet, now time.Time) *Refusal {
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
	d := demand{tokens: need}
	if ask.Reserve {
		d.reserved = int(min(need, maxCount))
	}
	if refusal := t.take(d, fleet, now); refusal != nil {
		return refusal
	}
	if t.limits.tokens > 0 {
		g.booked = need
	}
	t.reserved += d.reserved
	g.reserved = d.reserved
	return nil
}

// take takes what a request needs from the account, or from this router's lease. It may unlock mu, which is held, to ask the owner.
func (t *tenant) take(d demand, fleet Fleet, now time.Time) *Refusal {
	if t.part != nil {
		if t.part.owner != "" {
			return t.takeLeased(d, fleet, now)
		}
		t.part.changed = true
	}
	if cause, wait, lacks := t.lacks(d, now); lacks {
		return t.refuse(cause, wait, now)
	}
	took := t.limited(d.amounts())
	t.requests.level -= took.Requests
	t.tokens.level -= took.Tokens
	return nil
}

// lacks says which limit is in the way of a request, and for how long. mu is held.
func (t *tenant) lacks(d demand, now time.Time) (Cause, time.Duration, bool) {
	t.fill(now)
	all := t.holdings()
	if limit := t.most(t.limits.inFlight); d.inFlight > 0 && limit > 0 && all.InFlight+d.inFlight > limit {
		return CauseInFlight, t.nextEnd(all.InFlight), true
	}
	if limit := t.most(t.limits.reserved); d.reserved > 0 && limit > 0 && all.Reserved > 0 && all.Reserved+d.reserved > limit {
		return CauseReserved, t.nextEnd(all.InFlight), true
	}
	if wait := t.requests.wait(d.requests); d.requests > 0 && wait > 0 {
		return CauseRequests, wait, true
	}
	// A request larger than the bucket is admitted when the bucket is full, and leaves it below zero.
	wait := t.tokens.wait(d.tokens)
	return CauseTokens, wait, d.tokens > 0 && wait > 0
}

// settle ends the grant; its caller makes sure that this happens once. It returns the owner that must hear of it at once.
func (t *tenant) settle(g *Grant, u Usage, now time.Time) (hurry string) {
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
		t.put(grants.Amounts{Tokens: g.booked - actual}, now)
		t.refunds = min(t.refunds+refundShare*actual, refundShare*t.limits.tokenBurst)
	}
	if u.Elsewhere && t.limits.rate > 0 {
		t.put(grants.Amounts{Requests: 1}, now)
	}
	if u.Charge != ChargeNothing {
		t.took += (now.Sub(g.began).Seconds() - t.took) / memory
	}
	if u.Charge == ChargeUsage && u.Output > 0 {
		t.output += (float64(u.Output) - t.output) / memory
	}
	if t.part == nil {
		return ""
	}
	return t.part.freed()
}

// put returns amounts to the account. Tokens below zero were not booked, and are taken. mu is held.
func (t *tenant) put(a grants.Amounts, now time.Time) {
	if t.part != nil && t.part.owner != "" {
		t.part.lease.hand.Requests += a.Requests
		t.part.lease.hand.Tokens += a.Tokens
		return
	}
	t.buckets.add(a, now)
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

// refuse counts a refusal. mu is held.
func (t *tenant) refuse(cause Cause, wait time.Duration, now time.Time) *Refusal {
	t.counted.refused[cause]++
	return &Refusal{Cause: cause, RetryAfter: min(max(wait, shortest), longest), State: t.state(now)}
}

// state is the account as headers show it: the fleet's, as far as it is known. mu is held.
func (t *tenant) state(now time.Time) State {
	var s State
	t.fill(now)
	var here grants.Amounts // to take without a question
	if t.part != nil && t.part.owner != "" {
		here = t.part.lease.hand
	}
	if t.requests.limits() {
		left := min(t.requests.level+here.Requests, t.requests.size)
		s.Requests = t.limits.burst
		s.RequestsLeft = max(0, int(left+epsilon))
		s.RequestsReset = seconds((t.requests.size - left) / t.requests.rate).Round(time.Millisecond)
	}
	if t.tokens.limits() {
		left := min(t.tokens.level+here.Tokens, t.tokens.size)
		s.Tokens = int(t.limits.tokenBurst)
		s.TokensLeft = max(0, int(left+epsilon))
		s.TokensReset = seconds((t.tokens.size - left) / t.tokens.rate).Round(time.Millisecond)
	}
	return s
}

// close ends the account when nothing is lost by that.
func (t *tenant) close(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fill(now)
	t.closed = t.inFlight == 0 && t.full() && (t.part == nil || t.part.idle())
	return t.closed
}

func seconds(s float64) time.Duration {
	return time.Duration(min(max(s, 0), longest.Seconds()*24) * float64(time.Second))
}

// share is the part of the limits that the routers have which share the account. mu is held.
func (t *tenant) share() float64 {
	if t.part == nil {
		return 1
	}
	return t.part.view.Share()
}

// most is this part of a limit of what is in flight: at least one. mu is held.
func (t *tenant) most(limit int) int {
	if t.part == nil {
		return limit
	}
	return t.part.most(limit)
}

// holdings is what all routers have in flight, as far as this one knows. mu is held.
func (t *tenant) holdings() grants.Holding {
	if t.part == nil {
		return t.own()
	}
	return t.part.holdings()
}

// place puts the account where the view says: it becomes this router's, or another one's, or stays. mu is held. It reports whether
// it has another owner than before.
func (t *tenant) place(v *grants.View, now time.Time) bool {
	before := t.share()
	p := t.part
	isNew := p == nil
	if isNew {
		p = &part{acct: &t.account, lease: lease{acct: &t.account}}
		t.part = p
	}
	former := p.owner
	p.view, p.owner = v, v.Owner(t.name)
	if p.owner == v.Self() {
		p.owner = ""
	}
	t.buckets.share(before, v.Share(), now)
	p.division.note(before, v.Share(), now)
	maps.DeleteFunc(p.lent, func(id string, _ *lent) bool { return !v.Reaches(id) })
	switch {
	case isNew:
		p.assumed = t.assume(now)
		p.lease.begin()
		return false
	case p.owner == former:
		return false
	case former == "":
		p.handOver(now)
	case p.owner == "":
		p.takeOver(former, now)
	default:
		p.lease.restart()
	}
	return true
}
