package chooser

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"go.opentelemetry.io/otel/metric"
)

// beliefSlack is how long after twice the predicted first token a prompt is believed to be in
// the cache of its rank without an event for it.
const beliefSlack = 10 * time.Second

// maxRaces is how often a choice is made again because its rank was booked by another request in between; after that
// it is booked as it is.
const maxRaces = 8

// errNoRoom: other requests have taken the room since the loads were read. The request must wait like them.
var errNoRoom = errors.New("no room")

// Record receives the decisions and how they ended. It must not block.
type Record interface {
	// Decision has each decision that was made, dry runs included.
	Decision(d *decision.Decision)
	// Outcome has the end of each decision that was booked.
	Outcome(o decision.Outcome)
}

// booker books decisions and makes their Choices.
type booker struct {
	*evaluator

	leases  *leases
	record  Record // nil: none
	waiters waiters
	metrics *bookMetrics
	// withdrawn counts the requests that are withdrawn from their rank.
	withdrawn metric.Int64Counter
	// learning has the parts that the lessons work with.
	learning learning
}

// wait is the wait in the router that a booking ends. The zero value is none.
type wait struct {
	waited bool
	since  time.Time
	// memory is the part of it for memory; nil for none.
	memory *decision.MemoryWait
	// planned is the predicted work of the requests that wait before it for each rank.
	planned map[replica.Slot]float64
}

// commit books the choice in s, and makes it again when another request was booked on the same
// rank since the loads were read. One that may wait and has not yet gets errNoRoom when no room is left then.
func (b *booker) commit(s *evaluation, req *Request, of *remembered, now time.Time, w wait) (*Choice, error) {
	for race := 0; ; race++ {
		d := &s.d
		if d.Chosen < 0 {
			b.metrics.rejected.Add(1)
			d := b.recorded(s, req, now)
			b.publish(d)
			return nil, &NoReplica{Decision: d, RetryAfter: time.Second}
		}
		d.Tries = race
		if w.waited {
			d.Held, d.Memory = now.Sub(w.since), w.memory
		} else {
			d.Held = req.Age // it waited at another router
		}
		cand := d.Pick()
		if !req.Booking.books() {
			return b.unbooked(s, req, of, now), nil
		}
		made, err := b.reserve(s, req, race < maxRaces)
		switch {
		case err == nil:
			s.readings.forget(cand.Slot)
			s.readings.forget(s.computes().Slot)
			return b.finish(s, req, of, now, &made), nil
		case errors.Is(err, load.ErrConflict):
			b.metrics.races.Add(1)
			s.readings.forget(s.computes().Slot)
			b.loads(s, req, now, w.planned)
			s.choose()
			if !w.waited && s.held && d.Chosen >= 0 && !b.room().has(s.computes()) {
				return nil, errNoRoom
			}
		case errors.Is(err, load.ErrNoRank):
			cand.Veto = decision.VetoState
			s.choose()
		default:
			return nil, notBooked(err)
		}
	}
}

// booked is a booking that was made. lead is the booking of the rank that prefills for another one; its reservation is nil for none.
type booked struct {
	res, prefill  *load.Reservation
	booking, lead load.Request
}

// reserve books the choice in s; checked, only if nothing was booked on the rank that computes the prompt since its load was read.
func (b *booker) reserve(s *evaluation, req *Request, checked bool) (made booked, err error) {
	d := &s.d
	if w := d.Split(); w != nil {
		made.booking, made.lead = req.bookings(s)
		made.prefill, made.res, err = b.reserveSplit(s, w, made.booking, made.lead, checked)
		return made, err
	}
	made.booking = req.book(d, req.hashesFor(d.Pick()))
	if checked {
		made.res, err = b.book.ReserveIf(s.versions[d.Chosen], made.booking)
	} else {
		made.res, err = b.book.Reserve(made.booking)
	}
	return made, err
}

// notBooked is the error for one of the load book.
func notBooked(err error) error {
	switch {
	case errors.Is(err, load.ErrEnded), errors.Is(err, load.ErrStale):
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	case errors.Is(err, load.ErrFull):
		return &Refused{Cause: "reservations_full", RetryAfter: time.Second}
	default:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
}

// unbooked makes the Choice of a decision that is not booked.
func (b *booker) unbooked(s *evaluation, req *Request, of *remembered, now time.Time) *Choice {
	if req.Booking == Unbooked {
		cand := s.d.Pick()
		b.memory.remember(&s.d, req, &of.trail, req.hashesFor(cand), now)
	}
	b.addShadow(s, req)
	d := b.recorded(s, req, now)
	b.publish(d)
	cand := d.Pick()
	return &Choice{Decision: d, Replica: s.owner(s.d.Chosen), Rank: int(cand.Rank), Slot: cand.Slot}
}

// finish makes the Choice of a booking that was made, and reports it.
func (b *booker) finish(s *evaluation, req *Request, of *remembered, now time.Time, made *booked) *Choice {
	b.addShadow(s, req)
	d := b.recorded(s, req, now)
	cand := d.Pick()
	choice := b.newChoice(d, s.owner(s.d.Chosen), req, of, made.res)
	if rk := b.ranks.at(cand.Slot); rk != nil && !d.TooLong {
		choice.flight.rank = rk
		if made.prefill != nil {
			choice.lesson.learning, choice.lesson.rank = &b.learning, rk
			choice.observers.add(decoding{&choice.lesson})
		} else {
			whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
			rk.route(cand.Prefill, whole-cand.Prefill, b.clock.since(now))
			choice.lesson.open(&b.learning, rk)
			choice.observers.add(&choice.lesson)
		}
		choice.stream.enter(req, rk.conduct, now)
		choice.observers.add(&choice.stream)
	}
	if d.Others > 0 {
		choice.flight.pool = req.Replicas
	}
	if place := of.claims.place(&s.program, cand, b.clock.since(now)); place != nil {
		choice.program = programCall{place: place, returns: req.SessionReturn, clock: b.clock, settings: b.settings, prompt: d.PromptTokens}
		choice.observers.add(&choice.program)
	}
	if made.prefill != nil {
		b.joinLegs(choice, s, req, of, made.prefill, &made.lead)
	}
	b.start(choice, req, of, &made.booking, b.record)
	b.metrics.decisions.decided(d)
	b.publish(d)
	return choice
}

// newChoice makes the Choice of a booking; its observers are added later.
func (b *booker) newChoice(d *decision.Decision, r *replica.Replica, req *Request, of *remembered, res *load.Reservation) *Choice {
	cand, how := d.Pick(), req.reporting()
	c := &Choice{Decision: d, Replica: r, Rank: int(cand.Rank), Slot: cand.Slot, reservation: res, clock: b.clock, reporting: how}
	f := &c.found
	f.index, f.decision, f.unread, f.samples, f.certain = b.index, d, req.Unread, req.Samples, req.certain(cand)
	if req.Estimated {
		f.stores = b.index.Stores(cand.Slot)
	}
	c.flight.ranks, c.flight.decision, c.flight.reservation, c.flight.abandoned = b.ranks, d, res, b.withdrawn
	c.lesson.reporting, c.lesson.decision, c.lesson.found = how, d, f
	c.stream.reporting, c.stream.decision, c.stream.found = how, d, f
	c.answers = answers{lengths: &of.lengths, residence: b.residence, decision: d, external: how.external}
	c.outcome = outcome{reporting: how, record: b.record, decision: d, found: f}
	c.load = freedLoad{waiters: b.waiters, slot: cand.Slot}
	return c
}

// start adds the observers of every booked request and has the parts follow it. record is nil when another router records the outcome.
func (b *booker) start(c *Choice, req *Request, of *remembered, booking *load.Request, record Record) {
	d, cand, at := c.Decision, c.Decision.Pick(), c.Decision.At
	if c.flight.rank != nil {
		c.observers.add(&c.flight)
	}
	// A rank that reads the prompt's cache has nothing of it before, and its events come with it.
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone && d.Split() == nil {
		c.belief.Belief = b.index.Predict(cand.Slot, booking.Hashes, at.Add(2*duration(d.PredictedTTFT())+beliefSlack))
		c.flight.belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	if !d.TooLong {
		b.memory.remember(d, req, &of.trail, booking.Hashes, at)
	}
	if c.leased {
		c.lease = lease{leases: b.leases, choice: c}
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
	c.flight.enter(req, booking.PrefillTime, c.reporting)
	if c.leased { // from here on its reports may come
		b.leases.add(c)
	}
}

func (b *booker) publish(d *decision.Decision) {
	if b.record != nil {
		b.record.Decision(d)
	}
}

// book is the booking of d's pick. hashes are the prompt's in the rank's block size.
func (req *Request) book(d *decision.Decision, hashes []blockhash.Hash) load.Request {
	cand := d.Pick()
	booking := load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(cand.Uncached), PrefillTime: duration(cand.Prefill * (1 + cand.Slowdown)),
		Hashes: hashes, BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Lease: req.Lease, Unstreamed: req.Silent(), Again: req.Again,
	}
	if d.TooLong { // the engine refuses it at once
		booking.PromptTokens, booking.PrefillTokens, booking.PrefillTime, booking.Hashes = 0, 0, 0, nil
	}
	return booking
}
