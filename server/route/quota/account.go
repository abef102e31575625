package quota

import (
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// account is a tenant's account as this router knows it: its buckets are the fleet's where this router owns it or is alone, else the
// owner's last word. The tenant's mu guards it.
type account struct {
	name   string
	limits limits // the fleet's
	buckets
	inFlight int     // of this router
	reserved int     // of this router
	took     float64 // mean of the requests' times, in seconds
}

// own is what this router has in flight.
func (a *account) own() grants.Holding {
	return grants.Holding{InFlight: a.inFlight, Reserved: a.reserved}
}

// nextEnd is when one of so many requests in flight is expected to end.
func (a *account) nextEnd(inFlight int) time.Duration {
	return seconds(a.took / float64(max(1, inFlight)))
}

// demand is what a request needs before it continues.
type demand struct {
	requests, tokens   float64
	inFlight, reserved int
}

// amounts are what it takes of the buckets.
func (d demand) amounts() grants.Amounts {
	return grants.Amounts{Requests: d.requests, Tokens: d.tokens}
}

// add adds a demand n times.
func (d *demand) add(o demand, n int) {
	d.requests += float64(n) * o.requests
	d.tokens += float64(n) * o.tokens
	d.inFlight += n * o.inFlight
	d.reserved += n * o.reserved
}
