package load

import "github.com/kvpilot/kvpilot/server/domain/replica"

var ErrInvalid = errInvalid

// Slot returns the rank that the reservation is booked on, NoSlot when that rank is gone or the booking failed.
func (r *Reservation) Slot() replica.Slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost || r.booking == nil { // Find may see a reservation before its booking fails
		return replica.NoSlot
	}
	return r.booking.rank.slot
}

// PrefillDone is Reservation.PrefillDone by key, as the chooser finds a reservation for a caller outside the process.
func (b *Book) PrefillDone(key Key) Outcome {
	_, out := b.call(callPrefill, key, (*Reservation).prefillDone)
	return out
}

// Progress is Reservation.Progress by key.
func (b *Book) Progress(key Key, outputTokens int) Outcome {
	_, out := b.call(callProgress, key, func(r *Reservation) Outcome { return r.progress(outputTokens) })
	return out
}

// Release is Reservation.Release by key. It also ends a reservation that is Lost.
func (b *Book) Release(key Key) Outcome {
	r, out := b.call(callRelease, key, (*Reservation).release)
	if out == Applied {
		b.gone(r, &b.counts.released)
	}
	return out
}
