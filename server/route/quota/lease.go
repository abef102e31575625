package quota

import (
	"math/rand/v2"
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

const (
	// ahead is how far ahead of its requests a lease reaches, in seconds of what they took lately.
	ahead = 0.5
	// restAfter is the time without a request after which a lease is returned.
	restAfter = time.Second
	// askAfter and askLatest bound the time between a question that the owner could not serve and the next one.
	askAfter, askLatest = 10 * time.Millisecond, 100 * time.Millisecond
	// maxAsks bounds the questions of one request.
	maxAsks = 4
)

// lease is what this router has of an account that another one owns. The account's mu guards it.
type lease struct {
	acct            *account
	epoch, sequence uint64
	// hand is what requests may take; below zero: what answers took beyond it.
	hand grants.Amounts
	// returned is the sum of what went back, sent the same at the last report, applied what the owner has received. granted is the sum
	// of what came.
	returned, sent, applied, granted grants.Amounts
	// holding is what this router may have in flight.
	holding grants.Holding
	// asking is closed when the report that is on its way is answered; nil: none is.
	asking chan struct{}
	// waiting is the need of the requests that wait for that.
	waiting demand
	use     use
	// refused is when the owner last could not serve a need, by limit.
	refused [causes]time.Time
	// silent is since when the owner has not answered; zero: it answers. borrowed is what was taken since.
	silent   time.Time
	borrowed grants.Amounts
	// handover is set until the owner has received this router's account.
	handover bool
	assumed  assumption
	part     float64 // of the account before it was divided
}

// use measures what requests take, in amounts per second.
type use struct {
	sum  grants.Amounts
	rate grants.Amounts
	each float64 // tokens of a request
	peak int     // in flight
	at   time.Time
	last time.Time // of a request
}

// note counts what a request takes.
func (u *use) note(d demand, inFlight int, now time.Time) {
	u.sum.Requests += d.requests
	u.sum.Tokens += d.tokens
	u.peak = max(u.peak, inFlight+d.inFlight)
	u.last = now
	if d.tokens > 0 {
		u.each += (d.tokens - u.each) / memory
	}
}

// measure closes a period of a tenth of a second or more.
func (u *use) measure(inFlight int, now time.Time) {
	d := now.Sub(u.at).Seconds()
	if d < 0.1 {
		return
	}
	if d > 2 { // the first one, or the first after a rest
		d = 1
	}
	u.rate = grants.Amounts{Requests: (u.rate.Requests + u.sum.Requests/d) / 2, Tokens: (u.rate.Tokens + u.sum.Tokens/d) / 2}
	u.sum, u.at = grants.Amounts{}, now
	u.peak = max(inFlight, u.peak*3/4)
	if now.Sub(u.last) > restAfter {
		*u = use{at: now, last: u.last, each: u.each, peak: inFlight}
	}
}

// soon is what requests are expected to take soon.
func (u *use) soon() grants.Amounts {
	return grants.Amounts{Requests: u.rate.Requests * ahead, Tokens: u.rate.Tokens * ahead}
}

// begin begins an epoch.
func (l *lease) begin() {
	l.epoch, l.sequence = rand.Uint64(), 0
	l.granted, l.applied, l.sent = grants.Amounts{}, grants.Amounts{}, grants.Amounts{}
}

// restart begins an epoch with another owner, or with one that does not know the last. What no owner has received is sent again.
func (l *lease) restart() {
	l.stop()
	l.returned = l.returned.Minus(l.applied)
	l.begin()
	l.silent, l.borrowed = time.Time{}, grants.Amounts{}
	l.refused = [causes]time.Time{}
}

// stop has the requests that wait for a report continue.
func (l *lease) stop() {
	if l.asking != nil {
		close(l.asking)
		l.asking = nil
	}
}

// idle reports whether the lease holds nothing and owes nothing.
func (l *lease) idle() bool {
	return l.asking == nil && l.hand == (grants.Amounts{}) && l.holding == (grants.Holding{}) && l.returned == l.applied && !l.handover
}

// shareOf is a part of a limit, one at least.
func shareOf(limit int, part float64) int { return max(1, int(float64(limit)*part+epsilon)) }

// lacks says which part of the lease is too small for a request.
func (l *lease) lacks(d demand) (Cause, bool) {
	switch {
	case d.inFlight > 0 && l.acct.limits.inFlight > 0 && l.acct.inFlight+d.inFlight > l.holding.InFlight:
		return CauseInFlight, true
	case d.reserved > 0 && l.acct.limits.reserved > 0 && l.acct.reserved+d.reserved > l.holding.Reserved:
		return CauseReserved, true
	case d.requests > 0 && l.acct.requests.limits() && l.hand.Requests+epsilon < d.requests:
		return CauseRequests, true
	case d.tokens > 0 && l.acct.tokens.limits() && l.hand.Tokens+epsilon < d.tokens:
		return CauseTokens, true
	}
	return 0, false
}

// take takes what a request needs from the lease.
func (l *lease) take(d demand, now time.Time) {
	l.hand = l.hand.Minus(l.acct.limited(d.amounts()))
	l.use.note(d, l.acct.inFlight, now)
}

// borrow takes what a request lacks although the owner does not answer: all together no more than this router's part of the account. It
// is a debt that a later report carries.
func (l *lease) borrow(d demand, part float64, now time.Time) bool {
	if l.silent.IsZero() {
		return false
	}
	l.acct.fill(now)
	holding := grants.Holding{InFlight: shareOf(l.acct.limits.inFlight, part), Reserved: shareOf(l.acct.limits.reserved, part)}
	if d.inFlight > 0 && l.acct.limits.inFlight > 0 && l.acct.inFlight+d.inFlight > max(holding.InFlight, l.holding.InFlight) ||
		d.reserved > 0 && l.acct.limits.reserved > 0 && l.acct.reserved+d.reserved > max(holding.Reserved, l.holding.Reserved) {
		return false
	}
	var lacks grants.Amounts
	if l.acct.requests.limits() && d.requests > 0 {
		lacks.Requests = max(0, d.requests-l.hand.Requests)
	}
	if l.acct.tokens.limits() && d.tokens > 0 {
		lacks.Tokens = max(0, d.tokens-l.hand.Tokens)
	}
	if free := l.acct.requests.level*part - l.borrowed.Requests; lacks.Requests > 0 && min(lacks.Requests, l.acct.requests.size*part) > free+epsilon {
		return false
	}
	if free := l.acct.tokens.level*part - l.borrowed.Tokens; lacks.Tokens > 0 && min(lacks.Tokens, l.acct.tokens.size*part) > free+epsilon {
		return false
	}
	l.borrowed = l.borrowed.Plus(lacks)
	l.returned = l.returned.Minus(lacks)
	l.hand = l.hand.Plus(lacks)
	if l.acct.limits.inFlight > 0 {
		l.holding.InFlight = max(l.holding.InFlight, l.acct.inFlight+d.inFlight)
	}
	if l.acct.limits.reserved > 0 {
		l.holding.Reserved = max(l.holding.Reserved, l.acct.reserved+d.reserved)
	}
	return true
}

// report makes the report of this router's part to the owner, with the need of a request that waits; the zero value is none. It
// returns what is not needed.
func (l *lease) report(d demand, tight bool, now time.Time) grants.Report {
	l.use.measure(l.acct.inFlight, now)
	l.asking = make(chan struct{})
	soon := l.use.soon()
	if d.inFlight > 0 && l.acct.tokens.limits() {
		soon.Tokens = max(soon.Tokens, l.use.each) // its booking follows
	}
	need := d.amounts()
	waiting := l.waiting.amounts()
	wanted := need.Plus(waiting)
	spare := l.hand.Minus(wanted).Minus(soon).Minus(soon).Over()
	debt := grants.Amounts{Requests: min(0, l.hand.Requests), Tokens: min(0, l.hand.Tokens)}
	back := spare.Plus(debt)
	l.returned, l.hand = l.returned.Plus(back), l.hand.Minus(back)
	l.sequence++
	l.sent = l.returned
	r := grants.Report{
		Tenant: l.acct.name, Epoch: l.epoch, Sequence: l.sequence, Returned: l.returned,
		Need: need.Minus(l.hand).Over(), Waiting: waiting, More: wanted.Plus(soon).Minus(l.hand).Over().Minus(wanted.Minus(l.hand).Over()),
		Handover: l.handover,
	}
	if l.handover {
		r.Assumed, r.Part = l.assumed.at(now), l.part
	}
	l.reportHolding(&r, d, tight)
	return r
}

// reportHolding keeps what is in flight, and what lately was unless others may lack it.
func (l *lease) reportHolding(r *grants.Report, d demand, tight bool) {
	kept := grants.Holding{}
	if l.acct.limits.inFlight > 0 {
		kept.InFlight = l.acct.inFlight
		want := l.acct.inFlight + d.inFlight + l.waiting.inFlight
		if !tight {
			kept.InFlight = max(kept.InFlight, min(l.holding.InFlight, l.use.peak))
			r.MoreHolding.InFlight = max(0, l.use.peak+l.use.peak/4+1-max(want, kept.InFlight))
		}
		r.NeedHolding.InFlight = max(0, want-kept.InFlight)
		if d.inFlight == 0 && l.waiting.inFlight == 0 && l.use.peak == 0 {
			r.MoreHolding.InFlight = 0
		}
	}
	if l.acct.limits.reserved > 0 {
		kept.Reserved = l.acct.reserved
		r.NeedHolding.Reserved = d.reserved
	}
	l.holding, r.Holding = kept, kept
}

// fallSilent notes that the owner does not answer.
func (l *lease) fallSilent(now time.Time) {
	if l.silent.IsZero() {
		l.silent = now
	}
}

// due reports whether the owner should hear of the lease now.
func (l *lease) due() bool {
	return l.asking == nil && (!l.idle() || l.acct.inFlight > 0 || !l.silent.IsZero())
}
