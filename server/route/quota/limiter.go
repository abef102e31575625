package quota

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/grants"
)

const (
	// maxTenants bounds the accounts of tenants without an entry of their own. Those beyond it that cannot take the
	// place of an idle one share an account, with the default's limits for all of them together.
	maxTenants = 4096
	// maxLabels bounds the tenants without an entry that metrics show by name.
	maxLabels = 64
	// others is the label of all further ones.
	others = "other"
	// othersName names the account of all of them; no tenant has this name.
	othersName = "\x00" + others
)

// Params is what the code passes in. Its zero value is valid.
type Params struct {
	Scope scope.Scope
}

// Limiter has the accounts of all tenants: whole ones in a router that stands alone, this router's part of them in a fleet. Make one with
// New.
type Limiter struct {
	table atomic.Pointer[table]
	fleet Fleet                       // nil: the router is alone
	view  atomic.Pointer[grants.View] // nil until the fleet has sent one

	mu      sync.RWMutex
	tenants map[string]*tenant // guarded by mu
	others  *tenant            // guarded by mu
	labels  int                // given to tenants without an entry; guarded by mu
	gone    counts             // of accounts that were forgotten; guarded by mu
	moved   atomic.Int64       // accounts that got another owner
}

var (
	_ Owner           = (*Limiter)(nil)
	_ grants.Accounts = (*Limiter)(nil)
)

// table is one state of the settings. It never changes.
type table struct {
	config Config
	base   limits
	active bool
	capped bool
}

func newTable(c Config) *table {
	t := &table{config: maps.Clone(c), base: c.of(Default)}
	t.active, t.capped = t.base.some(), t.base.capped
	for name := range c {
		l := c.of(name)
		t.active, t.capped = t.active || l.some(), t.capped || l.capped
	}
	return t
}

func (t *table) of(name string) limits {
	if _, own := t.config[name]; !own {
		return t.base
	}
	return t.config.of(name)
}

// New returns a Limiter. c must be valid.
func New(c Config, p Params) *Limiter {
	l := &Limiter{tenants: map[string]*tenant{}}
	l.table.Store(newTable(c))
	observe(p.Scope.Meters(), l)
	return l
}

// Update applies new settings, all at once; if they are invalid, it keeps the old ones. What is booked stays
// booked, and what was taken stays taken.
func (l *Limiter) Update(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t, now := newTable(c), time.Now()
	l.table.Store(t)
	for name, who := range l.tenants {
		who.limit(t.of(name), now)
	}
	if l.others != nil {
		l.others.limit(t.base, now)
	}
	return nil
}

// Active implements Owner.
func (l *Limiter) Active() bool { return l.table.Load().active }

// MaxPriority implements Owner.
func (l *Limiter) MaxPriority(tenant string) (int, bool) {
	t := l.table.Load()
	if !t.capped {
		return 0, false
	}
	own := t.of(tenant)
	return own.maxPriority, own.capped
}

// Weight is the tenant's share of the hold queue.
func (l *Limiter) Weight(tenant string) float64 {
	t := l.table.Load()
	if len(t.config) == 0 {
		return 1
	}
	return t.of(tenant).weight
}

// Admit implements Owner.
func (l *Limiter) Admit(g *Grant, tenant string) *Refusal {
	for now := time.Now(); ; {
		if refusal, open := l.account(tenant, now).admit(g, l.fleet, now); open {
			return refusal
		}
	}
}

// Book implements Owner.
func (l *Limiter) Book(g *Grant, ask Ask) *Refusal {
	if g.tenant == nil || g.settled.Load() {
		return nil
	}
	return g.tenant.book(g, ask, l.fleet, time.Now())
}

// Settle implements Owner.
func (l *Limiter) Settle(g *Grant, u Usage) {
	if g.tenant == nil || g.settled.Swap(true) {
		return
	}
	if owner := g.tenant.settle(g, u, time.Now()); owner != "" {
		l.fleet.Hurry(owner, g.tenant.name)
	}
}

// State implements Owner.
func (l *Limiter) State(g *Grant) (State, bool) {
	if g.tenant == nil {
		return State{}, false
	}
	g.tenant.mu.Lock()
	defer g.tenant.mu.Unlock()
	return g.tenant.state(time.Now()), true
}

// account finds a tenant's account, or opens one.
func (l *Limiter) account(name string, now time.Time) *tenant {
	l.mu.RLock()
	t := l.tenants[name]
	l.mu.RUnlock()
	if t != nil {
		return t
	}
	return l.accountOf(name, shared(name), now)
}

// accountOf finds the account of a tenant by its name in the fleet, or opens it.
func (l *Limiter) accountOf(name, key string, now time.Time) *tenant {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenants[key]
	if t != nil {
		return t
	}
	settings := l.table.Load()
	_, named := settings.config[name]
	if !named && len(l.tenants) >= maxTenants {
		l.forget(now)
	}
	if !named && len(l.tenants) >= maxTenants {
		if l.others == nil {
			l.others = l.newTenant(othersName, others, settings.base, now)
		}
		return l.others
	}
	label := others
	switch {
	case named:
		label = name
	case l.labels < maxLabels:
		label = name
		l.labels++
	}
	t = l.newTenant(key, label, settings.of(name), now)
	l.tenants[key] = t
	return t
}

// newTenant makes an account, where the fleet has it. mu is held.
func (l *Limiter) newTenant(name, label string, limits limits, now time.Time) *tenant {
	t := newTenant(name, label, limits, now)
	if v := l.view.Load(); v != nil {
		t.place(v, now)
	}
	return t
}

// forget closes the accounts that hold no state worth keeping. Accounts that metrics show by name are kept. mu is held.
func (l *Limiter) forget(now time.Time) {
	for name, t := range l.tenants {
		if t.label == others && t.close(now) {
			l.gone.add(&t.counted)
			delete(l.tenants, name)
		}
	}
}
