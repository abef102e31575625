package admission

import (
	"errors"
	"time"
)

// Why a request is turned away.
var (
	ErrFull     = errors.New("too many requests wait")
	ErrBytes    = errors.New("the requests that wait hold too many bytes")
	ErrDeadline = errors.New("the deadline cannot be met")
	ErrTimeout  = errors.New("waited too long")
	ErrShutdown = errors.New("the router is shutting down")
)

// Ticket is one waiting request. Its owner fills the exported fields before Push and leaves them
// alone afterwards; Work changes through Visit's function only.
type Ticket struct {
	// Tenant shares the line fairly with others; empty is a tenant too.
	Tenant string
	// Priority orders tickets before anything else: higher goes first.
	Priority int
	// Bytes is the memory it holds.
	Bytes int
	// Deadline is when it is of no use any more; zero is never.
	Deadline time.Time
	// Work is the predicted work in seconds that it would bring to the best rank.
	Work float64
	// Since is when the waiting began, for the order, where that was before Push; zero is at Push.
	Since time.Time
	// Accepted says that it was let in before and comes back: it counts, and no bound refuses it.
	Accepted bool
	// Owner is whatever the visitor needs to know.
	Owner any

	arrived time.Time
	key     float64 // Work plus ageing: the order among a tenant's equals
	tenant  *tenant
}

// Arrived is when the ticket was pushed.
func (t *Ticket) Arrived() time.Time { return t.arrived }

// before orders the tickets of one tenant.
func (t *Ticket) before(o *Ticket) bool {
	if t.Priority != o.Priority {
		return t.Priority > o.Priority
	}
	return t.key < o.key
}
