package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// Fleet reaches the owners of accounts. Package grants has one.
type Fleet interface {
	// Ask sends a report to the owner of an account and returns its answer, or an error when the owner was silent for Patience.
	Ask(owner string, r grants.Report) (grants.Grant, error)
	// Hurry has the report of a tenant's account sent to its owner at once. It does not block.
	Hurry(owner, tenant string)
	// Patience is how long a request waits for an owner.
	Patience() time.Duration
}

// Join has the accounts shared with other routers. It must be called before the first request.
func (l *Limiter) Join(f Fleet) { l.fleet = f }

// SetView implements grants.Accounts.
func (l *Limiter) SetView(v *grants.View) {
	l.view.Store(v)
	now := time.Now()
	for _, t := range l.all() {
		t.mu.Lock()
		if t.place(v, now) {
			l.moved.Add(1)
		}
		t.mu.Unlock()
	}
}

// all lists the accounts.
func (l *Limiter) all() []*tenant {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make([]*tenant, 0, len(l.tenants)+1)
	for _, t := range l.tenants {
		list = append(list, t)
	}
	if l.others != nil {
		list = append(list, l.others)
	}
	return list
}

// maxName bounds the tenants' names that are sent to other routers, in bytes.
const maxName = 256

// shared is the name of a tenant's account in the fleet: its own, or a digest of one that no message may have.
func shared(tenant string) string {
	if len(tenant) <= maxName && utf8.ValidString(tenant) && !strings.HasPrefix(tenant, "\x00") {
		return tenant
	}
	sum := sha256.Sum256([]byte(tenant))
	return "\x00" + hex.EncodeToString(sum[:])
}

// find returns the account of a tenant, nil if there is none.
func (l *Limiter) find(name string) *tenant {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if name == othersName {
		return l.others
	}
	return l.tenants[name]
}

// open returns the account of a tenant that another router reports about, and makes one where there is room.
func (l *Limiter) open(name string, now time.Time) *tenant {
	if name != othersName {
		return l.accountOf(name, name, now)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.others == nil {
		l.others = l.newTenant(othersName, others, l.table.Load().base, now)
	}
	return l.others
}

// Reports implements grants.Accounts.
func (l *Limiter) Reports(owner string, tenants []string) []grants.Report {
	var list []*tenant
	for _, name := range tenants {
		if t := l.find(name); t != nil {
			list = append(list, t)
		}
	}
	if len(tenants) == 0 {
		list = l.all()
	}
	now := time.Now()
	var due []grants.Report
	for _, t := range list {
		t.mu.Lock()
		if t.part != nil && t.part.owner == owner && t.part.lease.due() {
			due = append(due, t.part.lease.report(demand{}, t.part.tight(), now))
		}
		t.mu.Unlock()
	}
	return due
}

// Granted implements grants.Accounts.
func (l *Limiter) Granted(owner, tenant string, g grants.Grant) {
	if t := l.find(tenant); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.part.answered(owner, g, time.Now())
	}
}

// Failed implements grants.Accounts.
func (l *Limiter) Failed(owner, tenant string) {
	if t := l.find(tenant); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.part.unanswered(owner, time.Now())
	}
}

// Lend implements grants.Accounts.
func (l *Limiter) Lend(from string, r grants.Report) grants.Grant {
	now := time.Now()
	for {
		t := l.open(r.Tenant, now)
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			continue
		}
		defer t.mu.Unlock()
		if t.part == nil || t.name != r.Tenant { // there is no room for another account
			return grants.Grant{Epoch: r.Epoch, Sequence: r.Sequence, Refusal: grants.NotOwner}
		}
		return t.part.lend(from, r, now)
	}
}

// Changed implements grants.Accounts.
func (l *Limiter) Changed(all bool) []grants.Account {
	now := time.Now()
	var list []grants.Account
	for _, t := range l.all() {
		t.mu.Lock()
		if p := t.part; p != nil && p.owner == "" && (all || p.changed) {
			p.changed = p.changed && all // those that get the changes get this one later
			list = append(list, p.statement(now))
		}
		t.mu.Unlock()
	}
	return list
}

// Witness implements grants.Accounts.
func (l *Limiter) Witness(_ string, list []grants.Account) {
	now := time.Now()
	for i := range list {
		t := l.open(list[i].Tenant, now)
		t.mu.Lock()
		if t.part != nil && t.part.owner != "" && t.name == list[i].Tenant && t.part.lease.silent.IsZero() {
			t.part.witness(list[i], now)
		}
		t.mu.Unlock()
	}
}

// Shown counts the accounts that this router owns, those of which it has a lease, and how often accounts got another owner.
func (l *Limiter) Shown() (owned, leased int, moved int64) {
	for _, t := range l.all() {
		t.mu.Lock()
		switch {
		case t.part == nil || t.part.owner == "":
			owned++
		case !t.part.lease.idle():
			leased++
		}
		t.mu.Unlock()
	}
	return owned, leased, l.moved.Load()
}
