package load

import "errors"

// Outcome is the effect of a lifecycle call.
type Outcome uint8

// The outcomes. Only Applied changed the booked load.
const (
	// Applied: the call was the first of its kind and took effect.
	Applied Outcome = iota
	// Duplicate: the same was reported before. A lease is renewed nevertheless.
	Duplicate
	// Stale: the call is overtaken: it names an attempt that was replaced by a later one, or fewer
	// output tokens than were already reported.
	Stale
	// Unknown: no such reservation or attempt is or was known here, as far as the book remembers.
	Unknown
	// Ended: the reservation was released or its lease ran out.
	Ended
	// Lost: the rank that the reservation was booked on is gone, so nothing is booked any more. The
	// request may be booked again under its next attempt, or released.
	Lost
	outcomes
)

// String gives the outcome in the form that metrics, logs and JSON use.
func (o Outcome) String() string {
	return [outcomes]string{"applied", "duplicate", "stale", "unknown", "ended", "lost"}[o]
}

// The errors that Reserve and ReserveIf may return instead of a reservation.
var (
	// ErrConflict: the rank was booked by another request since its version was read. Read it and choose again.
	ErrConflict = errors.New("the rank's load changed since it was read")
	// ErrNoRank: no rank has this slot (any more).
	ErrNoRank = errors.New("no rank has this slot")
	// ErrEnded: this attempt, or a later one, of this id has already ended.
	ErrEnded = errors.New("the reservation has already ended")
	// ErrStale: a later attempt of this id is booked.
	ErrStale = errors.New("a later attempt is booked")
	// ErrFull: the book holds Config.MaxReservations reservations.
	ErrFull = errors.New("too many reservations")
	// errInvalid: the request cannot be booked as it stands.
	errInvalid = errors.New("invalid reservation")
)
