package chooser

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// beliefSlack is how long after twice the predicted first token a prompt is believed to be in
// the cache of its rank without an event for it.
const beliefSlack = 10 * time.Second

// maxRaces is how often a choice is made again because its rank was booked by another request in between; after that
// it is booked as it is.
const maxRaces = 8

// errNoRoom: other requests have taken the room since the loads were read. The request must wait like them.
var errNoRoom = errors.New("no room")

// commit books the choice in s, and makes it again when another request was booked on the same
// rank since the loads were read. One that may wait and has not yet gets errNoRoom when no room is left then.
func (c *Chooser) commit(s *scratch, req *Request, ln *line, now time.Time, t *waiter) (*Choice, error) {
	for race := 0; ; race++ {
		d := &s.d
		if d.Chosen < 0 {
			c.metrics.rejected.Add(1)
			d := c.record(s, req, now)
			c.publish(d)
			return nil, &NoReplica{Decision: d, RetryAfter: time.Second}
		}
		d.Tries = race
		if t != nil {
			d.Held = now.Sub(t.ticket.Arrived())
		} else {
			d.Held = req.Age // it waited at another router
		}
		cand := d.Pick()
		r := s.owner(d.Chosen)
		if req.DryRun || req.Unbooked {
			if req.Unbooked {
				c.remember(d, req, ln, hashesFor(req, cand), now)
			}
			c.addShadow(s, req)
			d := c.record(s, req, now)
			c.publish(d)
			return &Choice{Decision: d, Replica: r, Rank: int(cand.Rank), Slot: cand.Slot}, nil
		}
		booking := load.Request{
			ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
			PrefillTokens: int(cand.Uncached), PrefillTime: duration(cand.Prefill * (1 + cand.Slowdown)),
			Hashes: hashesFor(req, cand), BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
			Lease: req.Lease, Unstreamed: req.Unstreamed || req.Lease != 0 && !req.Reports, Again: req.Again,
		}
		if d.TooLong { // the engine refuses it at once
			booking.PromptTokens, booking.PrefillTokens, booking.PrefillTime, booking.Hashes = 0, 0, 0, nil
		}
		var res *load.Reservation
		var err error
		if race < maxRaces {
			res, err = c.params.Book.ReserveIf(s.versions[d.Chosen], booking)
		} else {
			res, err = c.params.Book.Reserve(booking)
		}
		switch {
		case err == nil:
			s.forget(cand.Slot)
			return c.finish(s, req, ln, now, res, booking), nil
		case errors.Is(err, load.ErrConflict):
			c.metrics.races.Add(1)
			s.forget(cand.Slot)
			c.loads(s, req, now, ln.plannedIf(t != nil && t.memory == nil))
			s.choose()
			if t == nil && s.held && d.Chosen >= 0 && !c.hasRoom(d.Pick()) {
				return nil, errNoRoom
			}
		case errors.Is(err, load.ErrNoRank):
			cand.Veto = decision.VetoState
			s.choose()
		case errors.Is(err, load.ErrEnded), errors.Is(err, load.ErrStale):
			return nil, fmt.Errorf("%w: %w", ErrDuplicate, err)
		case errors.Is(err, load.ErrFull):
			return nil, &Refused{Cause: "reservations_full", RetryAfter: time.Second}
		default:
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
}

// finish makes the Choice of a booking that was made, and reports it.
func (c *Chooser) finish(s *scratch, req *Request, ln *line, now time.Time, res *load.Reservation, booking load.Request) *Choice {
	c.addShadow(s, req)
	d := c.recordIn(new(decision.Decision), s, req, now) // on its own: it is remembered long after the Choice, which leads to the request
	cand := d.Pick()
	var stores uint64
	if req.Estimated {
		stores = c.params.Index.Stores(cand.Slot)
	}
	choice := &Choice{
		Decision: d, Replica: s.owner(s.d.Chosen), Rank: int(cand.Rank), Slot: cand.Slot,
		chooser: c, line: ln, reservation: res, at: now, streamed: !req.Unstreamed, leased: req.Lease != 0, silent: req.Unstreamed || req.Lease != 0 && !req.Reports,
		unread: req.Unread, samples: req.Samples, observer: req.Observer, stores: stores, certain: req.certain(cand),
		external: req.Lease != 0 || req.Quiet && req.AskedBy != "",
	}
	if rk := c.rank(cand.Slot); rk != nil && !d.TooLong {
		whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
		rk.route(cand.Prefill, whole-cand.Prefill, c.since(now))
		choice.rank = rk
		choice.learnBooked(now)
		choice.watch(req, now)
	}
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		choice.belief = c.params.Index.Predict(cand.Slot, booking.Hashes, now.Add(2*duration(cand.TTFT)+beliefSlack))
	}
	if !d.TooLong {
		c.remember(d, req, ln, booking.Hashes, now)
	}
	if choice.leased {
		c.booked.Store(bookedName{req.Tenant, req.ID}, choice)
	}
	if d.Others > 0 {
		choice.pool = req.Replicas
	}
	choice.program = programCall{place: c.settle(s, ln, cand, now), returns: req.SessionReturn}
	choice.track(req, booking.PrefillTime)
	c.metrics.decided(d)
	c.publish(d)
	return choice
}

func (c *Chooser) publish(d *decision.Decision) {
	if c.params.OnDecision != nil {
		c.params.OnDecision(d)
	}
}

// addShadow runs the shadow policy on a copy of the decision and records its choice.
func (c *Chooser) addShadow(s *scratch, req *Request) {
	d := &s.d
	t := c.settingsOf(req).of(req.Model)
	if t.shadow == "" || t.shadow == d.Policy {
		return
	}
	other := *d
	other.Policy = t.shadow
	other.Params = t.params
	s.shadow = append(s.shadow[:0], d.Candidates...)
	other.Candidates = s.shadow
	selector.Choose(&other)
	pick, served := other.Pick(), d.Pick()
	if pick == nil {
		return
	}
	d.Shadow = &decision.Shadow{
		Policy: t.shadow, Replica: pick.Replica, Rank: pick.Rank, Agrees: pick.Slot == served.Slot, Regret: pick.TTFT - served.TTFT,
	}
	c.metrics.shadowed(d.Shadow)
}
