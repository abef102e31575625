package ledger

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
)

// party is a tenant or an address, with its part of each pot.
type party struct{ held [pots]atomic.Int64 }

// Sender says for whom an Account is.
type Sender struct {
	// Tenant owns the account, unless Open or Nameless is set.
	Tenant string
	// Open: no credentials are in use, so that the address stands for the caller.
	Open bool
	// Unknown: the sender is not known yet, and may be one of many behind its address.
	Unknown bool
	// Nameless: credentials are in use, and the caller has shown none.
	Nameless bool
	// Conn is the connection that the caller uses; nil when Address is all that is known.
	Conn *Conn
	// Address is the caller's, without a port.
	Address string
}

// member is an account's part in a party. share is how many halves of the free room of the pot the party may hold; 0 is an eighth of
// the pot.
type member struct {
	*party
	share int64
	by    string
}

// The shares of parties: half of a pot that is empty else for one that stands for a caller, three quarters for an address with several tenants,
// and a third for the connections of an address whose senders are not known yet, which leave room for its requests.
const (
	shareEighth = 0
	shareThird  = 1
	shareHalf   = 2
	shareMost   = 6
)

// Account counts the holdings of one request, call or connection. The zero Account, and a nil one, counts nothing; Open makes it count.
type Account struct {
	ledger *Ledger
	of     [2]member
	held   [kinds]atomic.Int64
}

// Open makes a count for a sender. It must be called before any other method, once.
func (l *Ledger) Open(a *Account, s Sender) {
	a.ledger = l
	address := member{by: "address", share: shareHalf}
	if s.Conn != nil {
		address.party = s.Conn.account.of[0].party
	} else {
		address.party = l.addresses.find(network(s.Address))
	}
	switch {
	case s.Unknown:
		address.share = shareMost
		a.of = [2]member{address, {l.strangers.find(network(s.Address)), shareThird, "address"}}
	case s.Open:
		a.of = [2]member{address}
	case s.Nameless:
		a.of = [2]member{address, {&l.nameless, shareEighth, "nameless"}}
	default:
		address.share = shareMost
		a.of = [2]member{{l.tenants.find(s.Tenant), shareHalf, "tenant"}, address}
	}
	if l.opened.Add(1)%sweepEvery == 0 {
		l.sweep()
	}
}

// sweepEvery is after how many accounts the parties that hold nothing are forgotten. An account that was opened for one of them in that
// moment counts for a party of its own.
const sweepEvery = 4096

func (l *Ledger) sweep() {
	for _, all := range []*parties{&l.tenants, &l.addresses, &l.strangers} {
		all.mu.Lock()
		for name, p := range all.named {
			if p.held[bytesPot].Load() == 0 && p.held[placesPot].Load() == 0 {
				delete(all.named, name)
			}
		}
		all.mu.Unlock()
	}
}

// parties are the parties of one kind. The zero value is empty.
type parties struct {
	mu    sync.RWMutex
	named map[string]*party // guarded by mu
}

func (all *parties) find(name string) *party {
	all.mu.RLock()
	p := all.named[name]
	all.mu.RUnlock()
	if p != nil {
		return p
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if p = all.named[name]; p == nil {
		if all.named == nil {
			all.named = map[string]*party{}
		}
		p = new(party)
		all.named[name] = p
	}
	return p
}

// network is the address itself for IPv4, and the /64 that one host has for IPv6.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Unmap().Is4() {
		return address
	}
	prefix, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return prefix.String()
}

// Take charges n bytes of a kind, or returns a *Full and charges nothing. It does not wait; a refusal ends a slow hold for the next charge.
func (a *Account) Take(k Kind, n int64) error {
	err := a.take(k, n)
	if err != nil {
		a.ledger.metrics.refuse(err)
		a.ledger.evict(a, err)
	}
	return err
}

func (a *Account) take(k Kind, n int64) error {
	if a == nil || a.ledger == nil {
		return nil
	}
	l, p := a.ledger, k.pot()
	limit := l.limit(p)
	free := limit - l.pots[p].Add(n)
	if p == bytesPot { // frames that no account has must not take all from frames that have one
		free += max(0, l.frames.Load()-limit/2)
	}
	if free < 0 {
		l.pots[p].Add(-n)
		return &Full{k, "process"}
	}
	for i, m := range a.of {
		if m.party == nil {
			break
		}
		most := m.share * free / 2
		if m.share == shareEighth {
			most = limit / 8
		}
		if m.held[p].Add(n) > most {
			for _, m := range a.of[:i+1] {
				m.held[p].Add(-n)
			}
			l.pots[p].Add(-n)
			return &Full{k, m.by}
		}
	}
	l.held[k].Add(n)
	a.held[k].Add(n)
	return nil
}

// Give releases n bytes of a kind that were charged.
func (a *Account) Give(k Kind, n int64) {
	if a == nil || a.ledger == nil || n == 0 {
		return
	}
	l, p := a.ledger, k.pot()
	a.held[k].Add(-n)
	for _, m := range a.of {
		if m.party != nil {
			m.held[p].Add(-n)
		}
	}
	l.held[k].Add(-n)
	l.pots[p].Add(-n)
	l.wake()
}

// Held returns the account's holdings of a kind.
func (a *Account) Held(k Kind) int64 { return a.held[k].Load() }

// Close releases all that the account holds. It may be called again.
func (a *Account) Close() {
	for k := range kinds {
		if n := a.held[k].Load(); n != 0 {
			a.Give(k, n)
		}
	}
}

// Limit lowers the account's holdings of a kind to at most n.
func (a *Account) Limit(k Kind, n int64) {
	if held := a.held[k].Load(); held > n {
		a.Give(k, held-n)
	}
}

// Move hands n bytes of a kind over to another account of the same sender, which is empty.
func (a *Account) Move(to *Account, k Kind, n int64) {
	to.ledger, to.of = a.ledger, a.of
	a.held[k].Add(-n)
	to.held[k].Add(n)
}

// shares reports whether two accounts have the party in common that refused a charge; for the process's refusal they always have.
func (a *Account) shares(with *Account, refused *Full) bool {
	if refused.By == "process" {
		return true
	}
	for _, m := range a.of {
		if m.by != refused.By || m.party == nil {
			continue
		}
		for _, other := range with.of {
			if other.party == m.party {
				return true
			}
		}
	}
	return false
}

func asFull(err error) *Full {
	full, _ := errors.AsType[*Full](err)
	return full
}
