package chooser

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// leases has the choices with reservations of callers outside this process. Its calls are Choice's FirstToken, Progress and
// Release by tenant, reservation id and attempt. They answer as the load book does: only load.Applied changed something, and repeating a
// call never does.
type leases struct {
	book    *load.Book
	choices sync.Map // leaseName to *Choice
}

// leaseName names the choice of a leased reservation.
type leaseName struct{ tenant, id string }

func (c *Choice) leaseName() leaseName { return leaseName{c.Decision.Tenant, c.Decision.ID} }

func newLeases(book *load.Book) *leases {
	l := &leases{book: book}
	book.OnExpired(l.expired)
	return l
}

func (l *leases) add(c *Choice) { l.choices.Store(c.leaseName(), c) }

// lease is a Choice among the leases. It is an Observer.
type lease struct {
	endOnly
	leases *leases
	choice *Choice
}

// Ended implements Observer.
func (l *lease) Ended(*End) { l.leases.choices.CompareAndDelete(l.choice.leaseName(), l.choice) }

// PrefillCompleted reports the first token.
func (l *leases) PrefillCompleted(key load.Key) load.Outcome {
	choice, out := l.find(key)
	if choice == nil {
		return out
	}
	return choice.firstToken()
}

// ReportProgress reports the output tokens so far and renews the lease.
func (l *leases) ReportProgress(key load.Key, outputTokens int) load.Outcome {
	choice, out := l.find(key)
	if choice == nil {
		return out
	}
	return choice.progress(outputTokens)
}

// Renew keeps the reservation for another lease.
func (l *leases) Renew(key load.Key) load.Outcome { return l.book.Renew(key) }

// Finish ends the reservation.
func (l *leases) Finish(key load.Key, result Result) load.Outcome {
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
func (l *leases) find(key load.Key) (*Choice, load.Outcome) {
	if v, ok := l.choices.Load(leaseName{key.Tenant, key.ID}); ok {
		switch choice := v.(*Choice); {
		case choice.Decision.Attempt == int(key.Attempt):
			return choice, load.Applied
		case choice.Decision.Attempt > int(key.Attempt):
			return nil, load.Stale
		}
		return nil, load.Unknown
	}
	return nil, l.book.Renew(key)
}

// expired ends the choice of a lease that ran out.
func (l *leases) expired(key load.Key) {
	if v, ok := l.choices.Load(leaseName{key.Tenant, key.ID}); ok {
		if choice := v.(*Choice); choice.Decision.Attempt == int(key.Attempt) {
			choice.Release(ResultOf(decision.EndExpired))
		}
	}
}

// sweep ends the choices with an expired lease: the load book has freed them already.
func (l *leases) sweep() {
	l.choices.Range(func(name, v any) bool {
		n := name.(leaseName)
		if _, live := l.book.Find(n.tenant, n.id); !live {
			v.(*Choice).Release(ResultOf(decision.EndExpired))
		}
		return true
	})
}
