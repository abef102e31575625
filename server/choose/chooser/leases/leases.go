package leases

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Leases has the choices with reservations of callers outside this process. Its calls are Choice's FirstToken, Progress and
// Release by tenant, reservation id and attempt. They answer as the load book does: only load.Applied changed something, and repeating a
// call never does.
type Leases struct {
	book    *load.Book
	choices sync.Map // leaseName to *lease
}

// leaseName names the choice of a leased reservation.
type leaseName struct{ tenant, id string }

// New returns the leases of a book, which reports the expired ones.
func New(book *load.Book) *Leases {
	l := &Leases{book: book}
	book.OnExpired(l.expired)
	return l
}

// Held is a choice whose holder is outside of this process. Its reports answer as the load book does.
type Held interface {
	Prefilled() load.Outcome
	Advanced(outputTokens int) load.Outcome
	Release(result ask.Result) bool
}

// Of makes the lease of a choice; add begins it.
func (l *Leases) Of(choice Held, d *decision.Decision) Lease {
	return Lease{leases: l, choice: choice, name: leaseName{d.Tenant, d.ID}, attempt: d.Attempt}
}

// Add begins a lease: from here on its reports may come.
func (l *Leases) Add(one *Lease) { l.choices.Store(one.name, one) }

// Lease is a choice among the leases. It is an Observer.
type Lease struct {
	ask.EndOnly
	leases  *Leases
	choice  Held
	name    leaseName
	attempt int
}

// Ended implements Observer.
func (l *Lease) Ended(*ask.End) { l.leases.choices.CompareAndDelete(l.name, l) }

// PrefillCompleted reports the first token.
func (l *Leases) PrefillCompleted(key load.Key) load.Outcome {
	choice, out := l.find(key)
	if choice == nil {
		return out
	}
	return choice.Prefilled()
}

// ReportProgress reports the output tokens so far and renews the lease.
func (l *Leases) ReportProgress(key load.Key, outputTokens int) load.Outcome {
	choice, out := l.find(key)
	if choice == nil {
		return out
	}
	return choice.Advanced(outputTokens)
}

// Renew keeps the reservation for another lease.
func (l *Leases) Renew(key load.Key) load.Outcome { return l.book.Renew(key) }

// Finish ends the reservation.
func (l *Leases) Finish(key load.Key, result ask.Result) load.Outcome {
	choice, out := l.find(key)
	if choice == nil {
		return out
	}
	// That the rank is gone, the router has seen by itself.
	result.Claimed = l.book.Renew(key) != load.Lost
	if !choice.Release(result) {
		return load.Ended
	}
	return load.Applied
}

// find returns the choice of a key, or the outcome that is known instead.
func (l *Leases) find(key load.Key) (Held, load.Outcome) {
	if v, ok := l.choices.Load(leaseName{key.Tenant, key.ID}); ok {
		switch one := v.(*Lease); {
		case one.attempt == int(key.Attempt):
			return one.choice, load.Applied
		case one.attempt > int(key.Attempt):
			return nil, load.Stale
		}
		return nil, load.Unknown
	}
	return nil, l.book.Renew(key)
}

// expired ends the choice of a lease that ran out.
func (l *Leases) expired(key load.Key) {
	if v, ok := l.choices.Load(leaseName{key.Tenant, key.ID}); ok {
		if one := v.(*Lease); one.attempt == int(key.Attempt) {
			one.choice.Release(ask.ResultOf(decision.EndExpired))
		}
	}
}

// Sweep ends the choices with an expired lease: the load book has freed them already.
func (l *Leases) Sweep() {
	l.choices.Range(func(name, v any) bool {
		n := name.(leaseName)
		if _, live := l.book.Find(n.tenant, n.id); !live {
			v.(*Lease).choice.Release(ask.ResultOf(decision.EndExpired))
		}
		return true
	})
}
