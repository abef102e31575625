package holdqueue

import (
	"errors"
	"time"
)

// The reasons of a rejection.
var (
	errFull     = errors.New("too many requests are queued")
	errBytes    = errors.New("the queued requests hold too many bytes")
	errDeadline = errors.New("the deadline cannot be met")
	errTimeout  = errors.New("waited too long")
	errShutdown = errors.New("the router is shutting down")
	errShare    = errors.New("the place in the queue belongs to another tenant")
)

// Ticket is one waiting request. Its owner fills the exported fields before Push and leaves them
// alone afterwards; Work changes through Visit's function only.
type Ticket struct {
	// Tenant shares the line fairly with others; empty is a tenant too.
	Tenant string
	// Priority orders a tenant's tickets before anything else: higher goes first.
	Priority int
	// First puts it before its tenant's other tickets of equal priority.
	First bool
	// Seniority orders it among its tenant's tickets as if it had arrived so much earlier. It moves no deadline.
	Seniority time.Duration
	// Bytes is the memory it holds.
	Bytes int
	// Age is the time that it has waited already, in the queue of another router.
	Age time.Duration
	// Deadline is when it becomes useless; zero is never.
	Deadline time.Time
	// Work is the predicted work in seconds that it would bring to the best rank.
	Work float64
	// Cost is its tenant's charge when it goes: the seconds of an engine that it is predicted to take, its
	// answer included; 0 is Work. It may change as Work does.
	Cost float64
	// Owner is whatever the visitor needs to know.
	Owner any

	arrived time.Time
	key     float64 // Work plus ageing, less seniority: the order among a tenant's equals
	number  uint64  // of its arrival: the order among equal keys
	work    float64 // as it is counted in its tenant's sums
	cost    float64
	tenant  *tenant
	place   int // in its tenant's heap
	why     error
}

// Arrived is when the ticket was pushed.
func (t *Ticket) Arrived() time.Time { return t.arrived }

// Why is why a ticket that Expired or Drain returned is refused.
func (t *Ticket) Why() error { return t.why }

// before orders the tickets of one tenant.
func (t *Ticket) before(o *Ticket) bool {
	switch {
	case t.Priority != o.Priority:
		return t.Priority > o.Priority
	case t.First != o.First:
		return t.First
	case t.key != o.key:
		return t.key < o.key
	}
	return t.number < o.number
}

// charge is the tenant's price. It is never zero, so that each tenant's tag grows.
func (t *Ticket) charge() float64 {
	if t.Cost > 0 {
		return max(t.Cost, leastCharge)
	}
	return max(t.Work, leastCharge)
}
