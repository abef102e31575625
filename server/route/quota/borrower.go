package quota

import (
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// mayAsk reports whether a question makes sense: the owner answers, and was not asked in vain a moment ago.
func (p *part) mayAsk(cause Cause, d demand, now time.Time) bool {
	l := &p.lease
	if !l.silent.IsZero() {
		return false
	}
	pause := min(max(askAfter, p.wait(cause, d, now)), askLatest)
	if cause == CauseInFlight || cause == CauseReserved {
		pause = askAfter
	}
	return !now.Before(l.refused[cause].Add(pause))
}

// wait is how long a request must wait, by what is known of the account.
func (p *part) wait(cause Cause, d demand, now time.Time) time.Duration {
	p.acct.fill(now)
	hand := p.lease.hand
	switch cause {
	case CauseRequests:
		return p.acct.requests.wait(d.requests - hand.Requests)
	case CauseTokens:
		return p.acct.tokens.wait(d.tokens - hand.Tokens)
	case CauseInFlight, CauseReserved, causes:
	}
	return p.acct.nextEnd(p.holdings().InFlight)
}

// tight reports whether what this router keeps in flight without need may be what another one lacks.
func (p *part) tight() bool {
	limit := p.most(p.acct.limits.inFlight)
	return limit > 0 && (limit < 8*p.view.Members() || 4*p.holdings().InFlight >= 3*limit)
}

// freed returns the owner to report to at once, because a request has ended and others may wait for its place.
func (p *part) freed() string {
	if p.owner == "" {
		p.changed = true
		return ""
	}
	l := &p.lease
	soon := l.use.soon()
	switch {
	case p.acct.limits.inFlight > 0 && p.acct.inFlight < l.holding.InFlight && p.tight(),
		p.acct.limits.reserved > 0 && p.acct.reserved < l.holding.Reserved,
		p.acct.tokens.limits() && p.acct.tokens.level < p.acct.tokens.size/2 && l.hand.Tokens > 2*soon.Tokens+epsilon,
		l.hand.Tokens < 0:
		return p.owner
	}
	return ""
}

// answered takes the owner's answer.
func (p *part) answered(owner string, g grants.Grant, now time.Time) {
	l := &p.lease
	if p.owner != owner || g.Epoch != l.epoch || g.Sequence != l.sequence {
		return // of another relation, or late
	}
	l.stop()
	switch g.Refusal {
	case grants.NotOwner:
		l.fallSilent(now)
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
	p.witness(g.Account, now)
}

// unanswered notes that the owner did not answer.
func (p *part) unanswered(owner string, now time.Time) {
	if p.owner != owner {
		return
	}
	p.lease.stop()
	p.lease.fallSilent(now)
}
