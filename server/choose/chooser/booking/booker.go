package booking

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/leases"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// beliefSlack is how long after twice the predicted first token a prompt is believed to be in
// the cache of its rank without an event for it.
const beliefSlack = 10 * time.Second

// errNoRoom: other requests have taken the room since the loads were read. The request must wait like them.
var ErrNoRoom = errors.New("no room")

// Booker books decisions and makes their Choices.
type Booker struct {
	*evaluate.Evaluator

	Leases  *leases.Leases
	Record  Record // nil: none
	Waiters follow.Waiters
	Metrics *Metrics
	// Withdrawn counts the requests that are withdrawn from their rank.
	Withdrawn *follow.Withdrawn
	// Learning has the parts that the lessons work with.
	Learning follow.Learning

	copies atomic.Uint64 // so far
	landed atomic.Int64  // when the last one ended, on the chooser's scale
	ahead  spreads
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
func (b *Booker) newChoice(d *decision.Decision, r *replica.Replica, req *ask.Request, of *evaluate.Model, res *load.Reservation) *Choice {
	cand, how := d.Pick(), req.Reporting()
	c := &Choice{Decision: d, Replica: r, Rank: int(cand.Rank), Slot: cand.Slot, reservation: res, clock: b.Clock, reporting: how}
	f := &c.found
	f.Index, f.Decision, f.Unread, f.Samples, f.Certain = b.Index, d, req.Unread, req.Samples, req.Certain(cand)
	if req.Estimated {
		f.Stores = b.Index.Stores(cand.Slot)
	}
	c.flight.Ranks, c.flight.Decision, c.flight.Reservation, c.flight.Abandoned = b.Ranks, d, res, b.Withdrawn
	c.lesson.Reporting, c.lesson.Decision, c.lesson.Found = how, d, f
	c.stream.Reporting, c.stream.Decision, c.stream.Found = how, d, f
	c.answers = follow.Answered{Lengths: &of.Lengths, Residence: b.Residence, Decision: d, External: how.External}
	c.outcome = follow.Outcome{Reporting: how, Record: b.Record, Decision: d, Found: f}
	c.load = follow.Freed{Waiters: b.Waiters, Slot: cand.Slot}
	return c
}

// start adds the observers of every booked request and has the parts follow it. record is nil when another router records the outcome.
func (b *Booker) start(c *Choice, req *ask.Request, of *evaluate.Model, booking *load.Request, record Record) {
	d, cand, at := c.Decision, c.Decision.Pick(), c.Decision.At
	if c.flight.Rank != nil {
		c.observers.add(&c.flight)
	}
	// A rank that reads the prompt's cache has nothing of it before, and its events come with it.
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone && d.Split() == nil {
		c.belief.Belief = b.Index.Predict(cand.Slot, booking.Hashes, at.Add(2*clock.Duration(d.PredictedTTFT())+beliefSlack))
		c.flight.Belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	if !d.TooLong {
		b.adapt(c, req.Adapter, cand)
		b.Memory.Remember(d, req, &of.Trail, booking.Hashes, at)
	}
	if c.reporting.Leased {
		c.lease = b.Leases.Of(c, d)
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
	c.flight.Enter(req, booking.PrefillTime, c.reporting)
	if c.reporting.Leased {
		b.Leases.Add(&c.lease)
	}
}

// adapt has the record of adapters follow a booked request with a LoRA adapter.
func (b *Booker) adapt(c *Choice, adapter string, cand *decision.Candidate) {
	if adapter == "" {
		return
	}
	d, adapting := c.Decision, cand.Adapting
	b.Metrics.Adapters.Add(residence(adapting.Adapter))
	if d.Split() != nil {
		adapting = decision.Adapting{} // its first token comes after another rank's
	}
	c.observers.add(&follow.Adapted{
		Reporting: c.reporting, Booking: b.Adapters.Book(adapter, cand.Slot, time.Duration(b.Clock.Since(d.At))), Clock: b.Clock,
		Adapting: adapting, At: d.At, Predicted: cand.TTFT,
	})
}

// shadowed records the shadow policy's choice, and counts it.
func (b *Booker) shadowed(s *evaluate.Evaluation, req *ask.Request) {
	if b.AddShadow(s, req); s.Decision.Shadow != nil {
		b.Metrics.Shadow.add(s.Decision.Shadow)
	}
}

func (b *Booker) publish(d *decision.Decision) {
	if b.Record != nil {
		b.Record.Decision(d)
	}
}

// Record receives the decisions and how they ended. It must not block.
type Record interface {
	// Decision has each decision that was made, dry runs included.
	Decision(d *decision.Decision)
	// Outcome has the end of each decision that was booked.
	Outcome(o decision.Outcome)
}
