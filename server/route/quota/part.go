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
	requests, tokens bucket
	until            time.Time
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

// assume makes an assumption of the account as it is. mu is held.
func (t *tenant) assume(now time.Time) assumption {
	return assumption{t.requests, t.tokens, now.Add(max(t.requests.refill(), t.tokens.refill()))}
}

// at is the assumption at a time.
func (a *assumption) at(now time.Time) grants.Amounts {
	if now.After(a.until) {
		return grants.Amounts{}
	}
	a.requests.fill(now)
	a.tokens.fill(now)
	return grants.Amounts{Requests: a.requests.level, Tokens: a.tokens.level}
}

// expected is the account of a former owner, of which this router has begun with what it knew.
type expected struct {
	from             string // empty: none
	requests, tokens bucket
	until            time.Time
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
	if t.part == nil || limit <= 0 {
		return limit
	}
	return max(1, int(float64(limit)*t.part.view.ShareNow()+epsilon))
}

// holdings is what all routers have in flight, as far as this one knows. mu is held.
func (t *tenant) holdings() grants.Holding {
	all := grants.Holding{InFlight: t.inFlight, Reserved: t.reserved}
	p := t.part
	switch {
	case p == nil:
	case p.owner == "":
		for _, l := range p.lent {
			all = all.Plus(l.holding)
		}
	default:
		for _, h := range p.seen {
			if h.ID != p.view.Self() {
				all = all.Plus(h.Holding)
			}
		}
	}
	return all
}

// inHand is what this router may take of the account without a question. mu is held.
func (t *tenant) inHand() grants.Amounts {
	if t.part == nil || t.part.owner == "" {
		return grants.Amounts{}
	}
	return t.part.lease.hand
}

// idle reports whether no other router's part depends on this one. mu is held.
func (t *tenant) idle() bool {
	p := t.part
	if p == nil {
		return true
	}
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

// levels are both buckets' as amounts.
func (t *tenant) levels() grants.Amounts {
	return grants.Amounts{Requests: t.requests.level, Tokens: t.tokens.level}
}

// setLevels replaces the levels.
func (t *tenant) setLevels(a grants.Amounts, now time.Time) {
	t.fill(now)
	if t.requests.limits() {
		t.requests.level = 0
		t.requests.put(a.Requests)
	}
	if t.tokens.limits() {
		t.tokens.level = 0
		t.tokens.put(a.Tokens)
	}
}

// add adds to the levels; amounts below zero are debts.
func (t *tenant) add(a grants.Amounts, now time.Time) {
	t.fill(now)
	if t.requests.limits() {
		t.requests.put(a.Requests)
	}
	if t.tokens.limits() {
		t.tokens.put(a.Tokens)
	}
}

// place puts the account where the view says: it becomes this router's, or another one's, or stays. mu is held. It reports whether
// it has another owner than before.
func (t *tenant) place(v *grants.View, now time.Time) bool {
	before := t.share()
	p := t.part
	isNew := p == nil
	if isNew {
		p = &part{}
		t.part = p
	}
	former := p.owner
	p.view, p.owner = v, v.Owner(t.name)
	if p.owner == v.Self() {
		p.owner = ""
	}
	t.requests.share(before, v.Share(), now)
	t.tokens.share(before, v.Share(), now)
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
		p.handOver(t, now)
	case p.owner == "":
		p.takeOver(t, former, now)
	default:
		p.lease.restart()
	}
	return true
}

// handOver makes a lease of what was this router's account. The whole level goes to the new owner.
func (p *part) handOver(t *tenant, now time.Time) {
	t.fill(now)
	l := &p.lease
	*l = lease{handover: true, assumed: p.assumed, part: p.division.at(now), holding: grants.Holding{InFlight: t.inFlight, Reserved: t.reserved}, waiting: l.waiting, use: l.use}
	l.begin()
	l.returned = t.levels()
	p.seen = p.holders(t)
	p.lent, p.expects, p.assumed = nil, expected{}, assumption{}
}

// takeOver makes the account this router's: what it knows of it, with what it had in hand and had not reported. A former owner that
// is still reached hands over its own; that replaces what this router knew.
func (p *part) takeOver(t *tenant, former string, now time.Time) {
	l := &p.lease
	p.assumed = l.assumed
	if l.handover { // what it knows is its own account, which no owner has received
		t.setLevels(grants.Amounts{}, now)
	}
	t.fill(now)
	p.expects = expected{}
	switch {
	case l.handover:
	case p.view.Reaches(former):
		p.expects = expected{from: former, requests: t.requests, tokens: t.tokens, until: now.Add(handoverTime)}
	case p.view.Share() == 1: // the former owner may live, with the same account; it is divided later
		p.assumed = t.assume(now)
	}
	t.add(l.hand.Plus(l.returned).Minus(l.applied), now)
	l.stop()
	*l = lease{waiting: l.waiting, use: l.use}
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
func (p *part) holders(t *tenant) []grants.Holder {
	var list []grants.Holder
	if own := (grants.Holding{InFlight: t.inFlight, Reserved: t.reserved}); own != (grants.Holding{}) {
		list = append(list, grants.Holder{ID: p.view.Self(), Holding: own})
	}
	for _, id := range slices.Sorted(maps.Keys(p.lent)) {
		if h := p.lent[id].holding; h != (grants.Holding{}) {
			list = append(list, grants.Holder{ID: id, Holding: h})
		}
	}
	return list
}

// account is the state that other routers see.
func (t *tenant) account(now time.Time) grants.Account {
	t.fill(now)
	return grants.Account{Tenant: t.name, Level: t.levels(), Holders: t.part.holders(t), RequestTime: t.took}
}

// witness stores what the owner says of the account.
func (t *tenant) witness(a grants.Account, now time.Time) {
	t.setLevels(a.Level, now)
	t.part.seen = a.Holders
	if a.RequestTime > 0 {
		t.took = min(a.RequestTime, longest.Seconds())
	}
}
