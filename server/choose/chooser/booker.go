package chooser

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// beliefSlack is how long after twice the predicted first token a prompt is believed to be in
// the cache of its rank without an event for it.
const beliefSlack = 10 * time.Second

// errNoRoom: other requests have taken the room since the loads were read. The request must wait like them.
var errNoRoom = errors.New("no room")

// booker books decisions and makes their Choices.
type booker struct {
	*evaluator

	leases  *leases
	record  Record // nil: none
	waiters Waiters
	metrics *bookMetrics
	// withdrawn counts the requests that are withdrawn from their rank.
	withdrawn metric.Int64Counter
	// learning has the parts that the lessons work with.
	learning learning
}

// notBooked is the error for one of the load book.
func notBooked(err error) error {
	switch {
	case errors.Is(err, load.ErrEnded), errors.Is(err, load.ErrStale):
		return fmt.Errorf("%w: %w", ask.ErrDuplicate, err)
	case errors.Is(err, load.ErrFull):
		return &ask.Refused{Cause: "reservations_full", RetryAfter: time.Second}
	default:
		return fmt.Errorf("%w: %w", ask.ErrInvalid, err)
	}
}

// newChoice makes the Choice of a booking; its observers are added later.
func (b *booker) newChoice(d *decision.Decision, r *replica.Replica, req *ask.Request, of *remembered, res *load.Reservation) *Choice {
	cand, how := d.Pick(), req.Reporting()
	c := &Choice{Decision: d, Replica: r, Rank: int(cand.Rank), Slot: cand.Slot, reservation: res, clock: b.clock, Reporting: how}
	f := &c.found
	f.index, f.decision, f.unread, f.samples, f.certain = b.index, d, req.Unread, req.Samples, req.Certain(cand)
	if req.Estimated {
		f.stores = b.index.Stores(cand.Slot)
	}
	c.flight.ranks, c.flight.decision, c.flight.reservation, c.flight.abandoned = b.ranks, d, res, b.withdrawn
	c.lesson.Reporting, c.lesson.decision, c.lesson.found = how, d, f
	c.stream.Reporting, c.stream.decision, c.stream.found = how, d, f
	c.answers = answered{lengths: &of.lengths, residence: b.residence, decision: d, external: how.External}
	c.outcome = outcome{Reporting: how, record: b.record, decision: d, found: f}
	c.load = freedLoad{waiters: b.waiters, slot: cand.Slot}
	return c
}

// start adds the observers of every booked request and has the parts follow it. record is nil when another router records the outcome.
func (b *booker) start(c *Choice, req *ask.Request, of *remembered, booking *load.Request, record Record) {
	d, cand, at := c.Decision, c.Decision.Pick(), c.Decision.At
	if c.flight.rank != nil {
		c.observers.add(&c.flight)
	}
	// A rank that reads the prompt's cache has nothing of it before, and its events come with it.
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone && d.Split() == nil {
		c.belief.Belief = b.index.Predict(cand.Slot, booking.Hashes, at.Add(2*clock.Duration(d.PredictedTTFT())+beliefSlack))
		c.flight.belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	if !d.TooLong {
		b.memory.remember(d, req, &of.trail, booking.Hashes, at)
	}
	if c.Leased {
		c.lease = b.leases.of(c, d)
		c.observers.add(&c.lease)
	}
	c.observers.add(&c.answers)
	if record != nil {
		c.observers.add(&c.outcome)
	}
	if req.Observer != nil {
		c.observers.add(req.Observer)
	}
	c.observers.add(&c.load)
	c.flight.enter(req, booking.PrefillTime, c.Reporting)
	if c.Leased {
		b.leases.add(&c.lease)
	}
}

// shadowed records the shadow policy's choice, and counts it.
func (b *booker) shadowed(s *evaluation, req *ask.Request) {
	if b.addShadow(s, req); s.d.Shadow != nil {
		b.metrics.shadow.add(s.d.Shadow)
	}
}

func (b *booker) publish(d *decision.Decision) {
	if b.record != nil {
		b.record.Decision(d)
	}
}

// Record receives the decisions and how they ended. It must not block.
type Record interface {
	// Decision has each decision that was made, dry runs included.
	Decision(d *decision.Decision)
	// Outcome has the end of each decision that was booked.
	Outcome(o decision.Outcome)
}
