package quota

import (
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// forgetLent is the age of the last report from which a router holds nothing: those that hold anything report four times a second.
const forgetLent = time.Minute

// lend answers the report of another router, to which this one owns the account.
func (p *part) lend(from string, r grants.Report, now time.Time) grants.Grant {
	out := grants.Grant{Epoch: r.Epoch, Sequence: r.Sequence}
	if p.owner != "" || !p.view.Reaches(from) {
		out.Refusal = grants.NotOwner
		return out
	}
	l := p.lent[from]
	if l == nil || l.epoch != r.Epoch {
		if r.Sequence != 1 {
			out.Refusal = grants.UnknownEpoch
			return out
		}
		l = &lent{epoch: r.Epoch}
		if p.lent == nil {
			p.lent = map[string]*lent{}
		}
		p.lent[from] = l
	}
	if first := l.sequence == 0; r.Sequence > l.sequence {
		l.sequence, l.at, p.changed = r.Sequence, now, true
		returned := r.Returned.Minus(l.returned)
		if r.Handover && first {
			returned = returned.Minus(p.known(from, &r, now))
		}
		l.returned = r.Returned
		p.acct.add(returned, now)
		l.holding = r.Holding
		l.granted = l.granted.Plus(p.grant(r))
		l.holding = l.holding.Plus(p.grantHolding(r))
		p.forget(now)
	}
	out.Granted, out.Holding, out.Account = l.granted, l.holding, p.statement(now)
	out.Account.Tenant = ""
	return out
}

// known is the part of a former owner's account that this router has counted already: what it began with, because it knew the
// account; or what the other one assumed, as far as both parts are more than the whole.
func (p *part) known(from string, r *grants.Report, now time.Time) grants.Amounts {
	e := &p.expects
	if e.from == from && !now.After(e.until) {
		e.fill(now)
		e.from = ""
		return e.levels()
	}
	assumed := r.Assumed
	if assumed == (grants.Amounts{}) {
		assumed = p.assumed.at(now)
		p.assumed = assumption{}
	}
	twice := min(1, max(0, r.Part+p.division.at(now)-1))
	return grants.Amounts{Requests: assumed.Requests * twice, Tokens: assumed.Tokens * twice}
}

// grant takes from the account what a report asks for.
func (p *part) grant(r grants.Report) grants.Amounts {
	n := float64(2 * p.view.Members())
	return grants.Amounts{
		Requests: lendFrom(&p.acct.requests, r.Need.Requests, r.Waiting.Requests, r.More.Requests, n),
		Tokens:   lendFrom(&p.acct.tokens, r.Need.Tokens, r.Waiting.Tokens, r.More.Tokens, n),
	}
}

// lendFrom takes what the first request needs, if it is there, then what the others need, and of what is expected later no more than
// the n-th part of the rest.
func lendFrom(b *bucket, need, waiting, more, n float64) float64 {
	if !b.limits() {
		return need + waiting + more
	}
	got := 0.0
	if need > 0 && b.wait(need) == 0 {
		got = need
		b.level -= need
		took := max(0, min(waiting, b.level))
		got += took
		b.level -= took
	}
	took := max(0, min(more, b.level/n))
	b.level -= took
	return got + took
}

// grantHolding is what of a report's further holding is free.
func (p *part) grantHolding(r grants.Report) grants.Holding {
	all, n := p.holdings(), 2*p.view.Members()
	var got grants.Holding
	need, more := r.NeedHolding, r.MoreHolding
	if limit := p.most(p.acct.limits.inFlight); limit > 0 {
		free := max(0, limit-all.InFlight)
		got.InFlight = min(need.InFlight, free)
		got.InFlight += min(more.InFlight, (free-got.InFlight)/n)
	} else {
		got.InFlight = need.InFlight + more.InFlight
	}
	limit := p.most(p.acct.limits.reserved)
	if limit <= 0 || all.Reserved == 0 || all.Reserved+need.Reserved <= limit {
		got.Reserved = need.Reserved
	}
	return got
}

// forget drops routers that have not reported for long.
func (p *part) forget(now time.Time) {
	for id, l := range p.lent {
		if now.Sub(l.at) > forgetLent {
			delete(p.lent, id)
		}
	}
}
