package adapters

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Booking is a request of an adapter on a rank. The zero value is none.
type Booking struct {
	fleet *Fleet
	slot  replica.Slot
	rank  *rank
	entry *entry
}

// Book notes that a request of the adapter goes to a rank.
func (f *Fleet) Book(adapter string, slot replica.Slot, now time.Duration) Booking {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, r := f.named(adapter, now), f.at(slot)
	u.count.add(now)
	e := r.find(u)
	if e == nil {
		e = &entry{of: u}
		r.entries = append(r.entries, e)
	}
	if e.inFlight++; e.inFlight == 1 {
		e.since = now
	}
	e.count.add(now)
	e.used = max(e.used, now)
	r.trim()
	return Booking{fleet: f, slot: slot, rank: r, entry: e}
}

// Learn takes in how long a load took: seconds is the time by which a first token came later than predicted for a rank that had the adapter.
// Times far above the expected one count as less far: something else may have delayed the token.
func (b *Booking) Learn(seconds float64) {
	if b.fleet == nil {
		return
	}
	b.fleet.mu.Lock()
	defer b.fleet.mu.Unlock()
	expected := b.fleet.load.or(usualLoad)
	b.rank.load.add(seconds, expected)
	b.fleet.load.add(seconds, expected)
}

// End notes that the request has ended. It must be called once.
func (b *Booking) End(now time.Duration) {
	if b.fleet == nil {
		return
	}
	b.fleet.mu.Lock()
	defer b.fleet.mu.Unlock()
	b.entry.inFlight--
	b.entry.used = max(b.entry.used, now)
	b.rank.trim()
}
