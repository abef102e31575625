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

// lacksHere says which part of the lease is too small for a request. mu is held.
func (t *tenant) lacksHere(d demand) (Cause, bool) {
	l := &t.part.lease
	switch {
	case d.inFlight > 0 && t.limits.inFlight > 0 && t.inFlight+d.inFlight > l.holding.InFlight:
		return CauseInFlight, true
	case d.reserved > 0 && t.limits.reserved > 0 && t.reserved+d.reserved > l.holding.Reserved:
		return CauseReserved, true
	case d.requests > 0 && t.requests.limits() && l.hand.Requests+epsilon < d.requests:
		return CauseRequests, true
	case d.tokens > 0 && t.tokens.limits() && l.hand.Tokens+epsilon < d.tokens:
		return CauseTokens, true
	}
	return 0, false
}

// takeLeased takes what a request needs from the lease. It asks the owner for more where that is too little, and takes this router's
// share where the owner does not answer. It unlocks mu, which is held, while it waits.
func (t *tenant) takeLeased(d demand, fleet Fleet, now time.Time) *Refusal {
	for asks := 0; ; asks++ {
		p := t.part
		if p.owner == "" { // it became this router's
			return t.take(d, fleet, now)
		}
		l := &p.lease
		cause, lacks := t.lacksHere(d)
		if !lacks {
			t.takeHere(d, now)
			return nil
		}
		if asks == maxAsks || !t.mayAsk(cause, d, now) {
			if t.borrow(d, now) {
				t.takeHere(d, now)
				return nil
			}
			return t.refuse(cause, t.waitHere(cause, d, now), now)
		}
		if l.asking != nil {
			answered := t.await(d, fleet.Patience())
			now = time.Now()
			if !answered && p.owner != "" {
				t.fallSilent(now)
			}
			continue
		}
		owner, report := p.owner, t.report(d, now)
		t.mu.Unlock()
		grant, err := fleet.Ask(owner, report)
		t.mu.Lock()
		now = time.Now()
		if err != nil {
			t.unanswered(owner, now)
			continue
		}
		t.answered(owner, grant, now)
		if cause, lacks := t.lacksHere(d); lacks && p.owner == owner {
			p.lease.refused[cause] = now
		}
	}
}

// await waits until the report that is on its way is answered, or as long as the owner may be silent. It unlocks mu, which is held.
func (t *tenant) await(d demand, patience time.Duration) (answered bool) {
	l := &t.part.lease
	answer := l.asking
	l.waiting.add(d, 1)
	t.mu.Unlock()
	timer := time.NewTimer(patience)
	select {
	case <-answer:
		answered = true
	case <-timer.C:
	}
	timer.Stop()
	t.mu.Lock()
	l.waiting.add(d, -1)
	return answered
}

// add adds a demand n times.
func (d *demand) add(o demand, n int) {
	d.requests += float64(n) * o.requests
	d.tokens += float64(n) * o.tokens
	d.inFlight += n * o.inFlight
	d.reserved += n * o.reserved
}

// mayAsk reports whether a question makes sense: the owner answers, and was not asked in vain a moment ago.
func (t *tenant) mayAsk(cause Cause, d demand, now time.Time) bool {
	l := &t.part.lease
	if !l.silent.IsZero() {
		return false
	}
	pause := min(max(askAfter, t.waitHere(cause, d, now)), askLatest)
	if cause == CauseInFlight || cause == CauseReserved {
		pause = askAfter
	}
	return !now.Before(l.refused[cause].Add(pause))
}

// waitHere is how long a request must wait, by what is known of the account.
func (t *tenant) waitHere(cause Cause, d demand, now time.Time) time.Duration {
	t.fill(now)
	hand := t.part.lease.hand
	switch cause {
	case CauseRequests:
		return t.requests.wait(d.requests - hand.Requests)
	case CauseTokens:
		return t.tokens.wait(d.tokens - hand.Tokens)
	case CauseInFlight, CauseReserved, causes:
	}
	return t.nextEnd()
}

// takeHere takes from the lease.
func (t *tenant) takeHere(d demand, now time.Time) {
	l := &t.part.lease
	if t.requests.limits() {
		l.hand.Requests -= d.requests
	}
	if t.tokens.limits() {
		l.hand.Tokens -= d.tokens
	}
	l.use.note(d, t.inFlight, now)
}

// borrow takes what a request lacks although the owner does not answer: all together no more than this router's share of the account. It
// is a debt that a later report carries.
func (t *tenant) borrow(d demand, now time.Time) bool {
	p := t.part
	l := &p.lease
	if l.silent.IsZero() {
		return false
	}
	t.fill(now)
	part := 1 / float64(p.view.Seen())
	holding := grants.Holding{InFlight: shareOf(t.limits.inFlight, part), Reserved: shareOf(t.limits.reserved, part)}
	if d.inFlight > 0 && t.limits.inFlight > 0 && t.inFlight+d.inFlight > max(holding.InFlight, l.holding.InFlight) ||
		d.reserved > 0 && t.limits.reserved > 0 && t.reserved+d.reserved > max(holding.Reserved, l.holding.Reserved) {
		return false
	}
	var lacks grants.Amounts
	if t.requests.limits() && d.requests > 0 {
		lacks.Requests = max(0, d.requests-l.hand.Requests)
	}
	if t.tokens.limits() && d.tokens > 0 {
		lacks.Tokens = max(0, d.tokens-l.hand.Tokens)
	}
	if free := t.requests.level*part - l.borrowed.Requests; lacks.Requests > 0 && min(lacks.Requests, t.requests.size*part) > free+epsilon {
		return false
	}
	if free := t.tokens.level*part - l.borrowed.Tokens; lacks.Tokens > 0 && min(lacks.Tokens, t.tokens.size*part) > free+epsilon {
		return false
	}
	l.borrowed = l.borrowed.Plus(lacks)
	l.returned = l.returned.Minus(lacks)
	l.hand = l.hand.Plus(lacks)
	if t.limits.inFlight > 0 {
		l.holding.InFlight = max(l.holding.InFlight, t.inFlight+d.inFlight)
	}
	if t.limits.reserved > 0 {
		l.holding.Reserved = max(l.holding.Reserved, t.reserved+d.reserved)
	}
	t.counted.alone++
	return true
}

// shareOf is a part of a limit, one at least.
func shareOf(limit int, part float64) int { return max(1, int(float64(limit)*part+epsilon)) }

// report makes the report of this router's part to the owner, with the need of a request that waits; the zero value is none. It
// returns what is not needed. mu is held.
func (t *tenant) report(d demand, now time.Time) grants.Report {
	l := &t.part.lease
	l.use.measure(t.inFlight, now)
	l.asking = make(chan struct{})
	soon := l.use.soon()
	if d.inFlight > 0 && t.tokens.limits() {
		soon.Tokens = max(soon.Tokens, l.use.each) // its booking follows
	}
	need := grants.Amounts{Requests: d.requests, Tokens: d.tokens}
	waiting := grants.Amounts{Requests: l.waiting.requests, Tokens: l.waiting.tokens}
	wanted := need.Plus(waiting)
	spare := l.hand.Minus(wanted).Minus(soon).Minus(soon).Over()
	debt := grants.Amounts{Requests: min(0, l.hand.Requests), Tokens: min(0, l.hand.Tokens)}
	back := spare.Plus(debt)
	l.returned, l.hand = l.returned.Plus(back), l.hand.Minus(back)
	l.sequence++
	l.sent = l.returned
	r := grants.Report{
		Tenant: t.name, Epoch: l.epoch, Sequence: l.sequence, Returned: l.returned,
		Need: need.Minus(l.hand).Over(), Waiting: waiting, More: wanted.Plus(soon).Minus(l.hand).Over().Minus(wanted.Minus(l.hand).Over()),
		Handover: l.handover,
	}
	if l.handover {
		r.Assumed, r.Part = l.assumed.at(now), l.part
	}
	t.reportHolding(&r, d)
	return r
}

// reportHolding keeps what is in flight, and what lately was unless others may lack it.
func (t *tenant) reportHolding(r *grants.Report, d demand) {
	l := &t.part.lease
	kept := grants.Holding{}
	if t.limits.inFlight > 0 {
		kept.InFlight = t.inFlight
		want := t.inFlight + d.inFlight + l.waiting.inFlight
		if !t.tight() {
			kept.InFlight = max(kept.InFlight, min(l.holding.InFlight, l.use.peak))
			r.MoreHolding.InFlight = max(0, l.use.peak+l.use.peak/4+1-max(want, kept.InFlight))
		}
		r.NeedHolding.InFlight = max(0, want-kept.InFlight)
		if d.inFlight == 0 && l.waiting.inFlight == 0 && l.use.peak == 0 {
			r.MoreHolding.InFlight = 0
		}
	}
	if t.limits.reserved > 0 {
		kept.Reserved = t.reserved
		r.NeedHolding.Reserved = d.reserved
	}
	l.holding, r.Holding = kept, kept
}

// tight reports whether what this router keeps in flight without need may be what another one lacks. mu is held.
func (t *tenant) tight() bool {
	limit := t.most(t.limits.inFlight)
	return limit > 0 && (limit < 8*t.part.view.Members() || 4*t.holdings().InFlight >= 3*limit)
}

// freed returns the owner to report to at once, because a request has ended and others may wait for its place. mu is held.
func (t *tenant) freed() string {
	p := t.part
	if p == nil {
		return ""
	}
	if p.owner == "" {
		p.changed = true
		return ""
	}
	l := &p.lease
	soon := l.use.soon()
	switch {
	case t.limits.inFlight > 0 && t.inFlight < l.holding.InFlight && t.tight(),
		t.limits.reserved > 0 && t.reserved < l.holding.Reserved,
		t.tokens.limits() && t.tokens.level < t.tokens.size/2 && l.hand.Tokens > 2*soon.Tokens+epsilon,
		l.hand.Tokens < 0:
		return p.owner
	}
	return ""
}

// answered takes the owner's answer. mu is held.
func (t *tenant) answered(owner string, g grants.Grant, now time.Time) {
	p := t.part
	l := &p.lease
	if p.owner != owner || g.Epoch != l.epoch || g.Sequence != l.sequence {
		return // of another relation, or late
	}
	l.stop()
	switch g.Refusal {
	case grants.NotOwner:
		t.fallSilent(now)
		return
	case grants.UnknownEpoch:
		l.restart()
		return
	case grants.Answered:
	}
	l.hand = l.hand.Plus(g.Granted.Minus(l.granted))
	l.granted, l.applied = g.Granted, l.sent
	l.holding = g.Holding
	l.handover, l.silent, l.borrowed = false, time.Time{}, grants.Amounts{}
	t.witness(g.Account, now)
}

// unanswered notes that the owner did not answer. mu is held.
func (t *tenant) unanswered(owner string, now time.Time) {
	if t.part.owner != owner {
		return
	}
	t.part.lease.stop()
	t.fallSilent(now)
}

func (t *tenant) fallSilent(now time.Time) {
	if l := &t.part.lease; l.silent.IsZero() {
		l.silent = now
	}
}

// due reports whether the owner should hear of the lease now. mu is held.
func (t *tenant) due() bool {
	l := &t.part.lease
	return l.asking == nil && (!l.idle() || t.inFlight > 0 || !l.silent.IsZero())
}
