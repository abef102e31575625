package booking

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// maxRaces is how often a choice is made again because its rank was booked by another request in between; after that
// it is booked as it is.
const maxRaces = 8

// Wait is the wait in the router that a booking ends. The zero value is none.
type Wait struct {
	Waited bool
	Since  time.Time
	// Memory is the part of it for memory; nil for none.
	Memory *decision.MemoryWait
	// Planned is the predicted work of the requests that wait before it for each rank.
	Planned map[replica.Slot]float64
	// Copy is the last copy of the prompt's beginning that it waited for, and Way its entry in the record; nil for none.
	Copy *transfer.Copy
	Way  decision.Way
}

// Commit books the choice in s, and makes it again when another request was booked on the same
// rank since the loads were read. One that may wait and has not yet gets errNoRoom when no room is left then.
func (b *Booker) Commit(s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, now time.Time, w Wait) (*Choice, error) {
	for race := 0; ; race++ {
		d := &s.Decision
		if d.Chosen < 0 {
			b.Metrics.Rejected.Add(1)
			d := b.Recorded(s, req, now)
			b.publish(d)
			return nil, &ask.NoReplica{Decision: d, RetryAfter: time.Second}
		}
		d.Tries = race
		if w.Waited {
			d.Held, d.Memory = now.Sub(w.Since), w.Memory
		} else {
			d.Held = req.Age // it waited at another router
		}
		b.copied(s, &w)
		cand := d.Pick()
		if !req.Booking.Books() {
			return b.unbooked(s, req, of, now), nil
		}
		made, err := b.reserve(s, req, race < maxRaces)
		switch {
		case err == nil:
			s.Readings.Forget(cand.Slot)
			s.Readings.Forget(s.Computes().Slot)
			return b.finish(s, req, of, now, &made), nil
		case errors.Is(err, load.ErrConflict):
			b.Metrics.Races.Add(1)
			s.Readings.Forget(s.Computes().Slot)
			b.Loads(s, req, now, w.Planned)
			s.Choose()
			if !w.Waited && s.Held && d.Chosen >= 0 && !b.Room().Has(s.Computes()) {
				return nil, ErrNoRoom
			}
		case errors.Is(err, load.ErrNoRank):
			cand.Veto = decision.VetoState
			s.Choose()
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
func (b *Booker) reserve(s *evaluate.Evaluation, req *ask.Request, checked bool) (made booked, err error) {
	d := &s.Decision
	if w := d.Split(); w != nil {
		made.booking, made.lead = bookings(req, d.Pick(), s.Computes())
		return made, b.reserveSplit(s, w, &made, checked)
	}
	made.booking = bookingOf(req, d, req.HashesFor(d.Pick()))
	if checked {
		made.res, err = b.Book.ReserveIf(s.Versions[d.Chosen], made.booking)
	} else {
		made.res, err = b.Book.Reserve(made.booking)
	}
	return made, err
}

// unbooked makes the Choice of a decision that is not booked.
func (b *Booker) unbooked(s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, now time.Time) *Choice {
	if req.Booking == ask.Unbooked {
		cand := s.Decision.Pick()
		b.Memory.Remember(&s.Decision, req, &of.Trail, req.HashesFor(cand), now)
	}
	b.shadowed(s, req)
	d := b.Recorded(s, req, now)
	b.publish(d)
	cand := d.Pick()
	return &Choice{Decision: d, Replica: s.Owner(s.Decision.Chosen), Rank: int(cand.Rank), Slot: cand.Slot}
}

// finish makes the Choice of a booking that was made, and reports it.
func (b *Booker) finish(s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, now time.Time, made *booked) *Choice {
	b.shadowed(s, req)
	d := b.Recorded(s, req, now)
	cand := d.Pick()
	choice := b.newChoice(d, s.Owner(s.Decision.Chosen), req, of, made.res)
	if rk := b.Ranks.At(cand.Slot); rk != nil && !d.TooLong {
		choice.flight.Rank = rk
		if made.prefill != nil {
			choice.lesson.Learning, choice.lesson.Rank = &b.Learning, rk
			choice.observers.add(follow.Decoding{Lesson: &choice.lesson})
		} else {
			whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
			rk.Route(cand.Prefill, max(0, whole-cand.Prefill-cand.Load), b.Clock.Since(now))
			choice.lesson.Open(&b.Learning, rk)
			choice.observers.add(&choice.lesson)
			choice.loads(rk, cand)
		}
		choice.stream.Enter(req, rk.Conduct, now)
		choice.observers.add(&choice.stream)
	}
	if d.Others > 0 {
		choice.flight.Pool = req.Replicas
	}
	if place := of.Claims.Place(&s.Program, cand, b.Clock.Since(now)); place != nil {
		choice.program = claims.Booked{Place: place, Returns: req.SessionReturn, Clock: b.Clock, Settings: b.Settings, Prompt: d.PromptTokens}
		choice.observers.add(&choice.program)
	}
	if made.prefill != nil {
		b.joinLegs(choice, s, req, of, made)
	}
	if call := b.follow(s, req, of, now); call != nil {
		choice.observers.add(call)
	}
	b.start(choice, req, of, &made.booking, b.Record)
	b.Metrics.decided(d)
	b.publish(d)
	return choice
}

// book is the booking of d's pick. hashes are the prompt's in the rank's block size.
func bookingOf(req *ask.Request, d *decision.Decision, hashes []blockhash.Hash) load.Request {
	cand := d.Pick()
	booking := load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(cand.Uncached), PrefillTime: clock.Duration(cand.Prefill*(1+cand.Slowdown) + float64(cand.AdapterLoad)),
		Hashes: hashes, BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Lease: req.Lease, Unstreamed: req.Silent(), Again: req.Again,
	}
	if d.TooLong { // the engine refuses it at once
		booking.PromptTokens, booking.PrefillTokens, booking.PrefillTime, booking.Hashes = 0, 0, 0, nil
	}
	return booking
}
