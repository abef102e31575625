package quota

import (
	"maps"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// handoverTime bounds the wait for the account of a former owner that is still reached.
const handoverTime = 2 * time.Second

// part is a router's part in an account that a fleet shares. The account's buckets are the fleet's: the owner's are the account, those of
// the other routers are what they know of it. Its methods are called with the account's mu held.
type part struct {
	acct  *account
	view  *grants.View
	owner string // empty: this router

	// Of the owner: what the others hold, whether anything has changed since the others were sent it, the account's beginning.
	lent     map[string]*lent
	changed  bool
	expects  expected
	assumed  assumption
	division division

	// Of the others: the lease, and what each router has in flight, as the owner sees it.
	lease lease
	seen  []grants.Holder
}

// lent is what the owner has lent to another router.
type lent struct {
	epoch, sequence   uint64
	returned, granted grants.Amounts
	holding           grants.Holding
	at                time.Time // of the last report
}

// assumption is what an account began with, filled up since, because this router did not have it from a former owner: it did not know
// one, or did not reach it. It is of no interest any more once an empty account would have filled up.
type assumption struct {
	buckets
	until time.Time
}

// division remembers by how much an account was divided, until the parts are together again.
type division struct {
	share float64 // zero: not
	until time.Time
}

// note notes a change of the share.
func (d *division) note(from, to float64, now time.Time) {
	switch {
	case to < from:
		*d = division{share: to}
	case to > from && d.share > 0:
		d.until = now.Add(handoverTime)
	}
}

// at is the part that this account is of the one before the division.
func (d *division) at(now time.Time) float64 {
	if d.share == 0 || !d.until.IsZero() && now.After(d.until) {
		return 1
	}
	return d.share
}

// at is the assumption at a time.
func (a *assumption) at(now time.Time) grants.Amounts {
	if now.After(a.until) {
		return grants.Amounts{}
	}
	a.fill(now)
	return a.levels()
}

// expected is the account of a former owner, of which this router has begun with what it knew.
type expected struct {
	from string // empty: none
	buckets
	until time.Time
}

// most is this part of a limit of what is in flight: at least one.
func (p *part) most(limit int) int {
	if limit <= 0 {
		return limit
	}
	return max(1, int(float64(limit)*p.view.ShareNow()+epsilon))
}

// holdings is what all routers have in flight, as far as this one knows.
func (p *part) holdings() grants.Holding {
	all := p.acct.own()
	if p.owner == "" {
		for _, l := range p.lent {
			all = all.Plus(l.holding)
		}
		return all
	}
	for _, h := range p.seen {
		if h.ID != p.view.Self() {
			all = all.Plus(h.Holding)
		}
	}
	return all
}

// idle reports whether no other router's part depends on this one.
func (p *part) idle() bool {
	if p.owner != "" {
		return p.lease.idle()
	}
	for _, l := range p.lent {
		if l.holding != (grants.Holding{}) {
			return false
		}
	}
	return true
}

// handOver makes a lease of what was this router's account. The whole level goes to the new owner.
func (p *part) handOver(now time.Time) {
	p.acct.fill(now)
	l := &p.lease
	*l = lease{acct: p.acct, handover: true, assumed: p.assumed, part: p.division.at(now), holding: p.acct.own(), waiting: l.waiting, use: l.use}
	l.begin()
	l.returned = p.acct.levels()
	p.seen = p.holders()
	p.lent, p.expects, p.assumed = nil, expected{}, assumption{}
}

// takeOver makes the account this router's: what it knows of it, with what it had in hand and had not reported. A former owner that
// is still reached hands over its own; that replaces what this router knew.
func (p *part) takeOver(former string, now time.Time) {
	l := &p.lease
	p.assumed = l.assumed
	if l.handover { // what it knows is its own account, which no owner has received
		p.acct.setLevels(grants.Amounts{}, now)
	}
	p.acct.fill(now)
	p.expects = expected{}
	switch {
	case l.handover:
	case p.view.Reaches(former):
		p.expects = expected{from: former, buckets: p.acct.buckets, until: now.Add(handoverTime)}
	case p.view.Share() == 1: // the former owner may live, with the same account; it is divided later
		p.assumed = p.acct.assume(now)
	}
	p.acct.add(l.hand.Plus(l.returned).Minus(l.applied), now)
	l.stop()
	*l = lease{acct: p.acct, waiting: l.waiting, use: l.use}
	l.begin()
	p.lent = map[string]*lent{}
	for _, h := range p.seen {
		if h.ID != p.view.Self() && p.view.Reaches(h.ID) {
			p.lent[h.ID] = &lent{holding: h.Holding, at: now}
		}
	}
	p.seen, p.changed = nil, true
}

// holders lists the routers with something in flight.
func (p *part) holders() []grants.Holder {
	var list []grants.Holder
	if own := p.acct.own(); own != (grants.Holding{}) {
		list = append(list, grants.Holder{ID: p.view.Self(), Holding: own})
	}
	for _, id := range slices.Sorted(maps.Keys(p.lent)) {
		if h := p.lent[id].holding; h != (grants.Holding{}) {
			list = append(list, grants.Holder{ID: id, Holding: h})
		}
	}
	return list
}

// statement is the state of the account that other routers see.
func (p *part) statement(now time.Time) grants.Account {
	p.acct.fill(now)
	return grants.Account{Tenant: p.acct.name, Level: p.acct.levels(), Holders: p.holders(), RequestTime: seconds(p.acct.took)}
}

// witness stores what the owner says of the account.
func (p *part) witness(a grants.Account, now time.Time) {
	p.acct.setLevels(a.Level, now)
	p.seen = a.Holders
	if a.RequestTime > 0 {
		p.acct.took = min(a.RequestTime, longest).Seconds()
	}
}
