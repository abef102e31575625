package chooser

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// maxRaces is how often a choice is made again because its rank was booked by another request in between; after that
// it is booked as it is.
const maxRaces = 8

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
func (b *booker) commit(s *evaluation, req *ask.Request, of *remembered, now time.Time, w wait) (*Choice, error) {
	for race := 0; ; race++ {
		d := &s.d
		if d.Chosen < 0 {
			b.metrics.rejected.Add(1)
			d := b.recorded(s, req, now)
			b.publish(d)
			return nil, &ask.NoReplica{Decision: d, RetryAfter: time.Second}
		}
		d.Tries = race
		if w.waited {
			d.Held, d.Memory = now.Sub(w.since), w.memory
		} else {
			d.Held = req.Age // it waited at another router
		}
		cand := d.Pick()
		if !req.Booking.Books() {
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
func (b *booker) reserve(s *evaluation, req *ask.Request, checked bool) (made booked, err error) {
	d := &s.d
	if w := d.Split(); w != nil {
		made.booking, made.lead = bookings(s, req)
		made.prefill, made.res, err = b.reserveSplit(s, w, made.booking, made.lead, checked)
		return made, err
	}
	made.booking = bookingOf(req, d, req.HashesFor(d.Pick()))
	if checked {
		made.res, err = b.book.ReserveIf(s.versions[d.Chosen], made.booking)
	} else {
		made.res, err = b.book.Reserve(made.booking)
	}
	return made, err
}

// unbooked makes the Choice of a decision that is not booked.
func (b *booker) unbooked(s *evaluation, req *ask.Request, of *remembered, now time.Time) *Choice {
	if req.Booking == ask.Unbooked {
		cand := s.d.Pick()
		b.memory.remember(&s.d, req, &of.trail, req.HashesFor(cand), now)
	}
	b.shadowed(s, req)
	d := b.recorded(s, req, now)
	b.publish(d)
	cand := d.Pick()
	return &Choice{Decision: d, Replica: s.owner(s.d.Chosen), Rank: int(cand.Rank), Slot: cand.Slot}
}

// finish makes the Choice of a booking that was made, and reports it.
func (b *booker) finish(s *evaluation, req *ask.Request, of *remembered, now time.Time, made *booked) *Choice {
	b.shadowed(s, req)
	d := b.recorded(s, req, now)
	cand := d.Pick()
	choice := b.newChoice(d, s.owner(s.d.Chosen), req, of, made.res)
	if rk := b.ranks.At(cand.Slot); rk != nil && !d.TooLong {
		choice.flight.rank = rk
		if made.prefill != nil {
			choice.lesson.learning, choice.lesson.rank = &b.learning, rk
			choice.observers.add(decoding{&choice.lesson})
		} else {
			whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
			rk.Route(cand.Prefill, whole-cand.Prefill, b.clock.Since(now))
			choice.lesson.open(&b.learning, rk)
			choice.observers.add(&choice.lesson)
		}
		choice.stream.enter(req, rk.Conduct, now)
		choice.observers.add(&choice.stream)
	}
	if d.Others > 0 {
		choice.flight.pool = req.Replicas
	}
	if place := of.claims.place(&s.program, cand, b.clock.Since(now)); place != nil {
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

// book is the booking of d's pick. hashes are the prompt's in the rank's block size.
func bookingOf(req *ask.Request, d *decision.Decision, hashes []blockhash.Hash) load.Request {
	cand := d.Pick()
	booking := load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(cand.Uncached), PrefillTime: clock.Duration(cand.Prefill * (1 + cand.Slowdown)),
		Hashes: hashes, BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Lease: req.Lease, Unstreamed: req.Silent(), Again: req.Again,
	}
	if d.TooLong { // the engine refuses it at once
		booking.PromptTokens, booking.PrefillTokens, booking.PrefillTime, booking.Hashes = 0, 0, 0, nil
	}
	return booking
}
