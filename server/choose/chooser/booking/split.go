package booking

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// reserveSplit books both ranks of a split request: the rank that prefills only if nothing was booked there since the loads were read.
// It books both or none.
func (b *Booker) reserveSplit(s *evaluate.Evaluation, w *decision.Way, booking, lead load.Request, checked bool) (prefill, res *load.Reservation, err error) {
	if checked {
		prefill, err = b.Book.ReserveIf(s.Versions[s.Pool.At(w.Prefill.Slot)], lead)
	} else {
		prefill, err = b.Book.Reserve(lead)
	}
	if err != nil {
		return nil, nil, err
	}
	if res, err = b.Book.Reserve(booking); err != nil {
		prefill.Release()
		return nil, nil, err
	}
	return prefill, res, nil
}

// prefillSuffix distinguishes the reservation of the rank that prefills from the other one's.
const prefillSuffix = "+prefill"

// bookings are a split request's bookings: on the rank that decodes no prefill, on the other one nothing else.
func bookings(s *evaluate.Evaluation, req *ask.Request) (booking, lead load.Request) {
	cand, by := s.Decision.Pick(), s.Computes()
	booking = load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		Hashes: req.HashesFor(cand), BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Unstreamed: true, // there is no prefill that its first token would end
		Again:      req.Again,
	}
	lead = load.Request{
		ID: req.ID + prefillSuffix, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: by.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(by.Uncached), PrefillTime: clock.Duration(by.Prefill*(1+by.Slowdown) + float64(by.AdapterLoad)),
		Hashes: req.HashesFor(by), BlockSize: int(by.BlockSize), ExpectedTokens: 1, Again: req.Again,
	}
	return booking, lead
}

// prefillChoice makes the Choice of the rank that prefills for d's pick.
func (b *Booker) prefillChoice(s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, d *decision.Decision, res *load.Reservation, booking *load.Request) *Choice {
	at := s.Pool.At(d.Split().Prefill.Slot)
	cand := &s.Decision.Candidates[at]
	own := *d
	own.ExpectedOutput, own.Ways, own.Shadow = 1, nil, nil
	own.Ranks = decision.Ranks{Candidates: []decision.Candidate{*cand}, Elsewhere: true}
	part := *req
	part.Reply, part.Observer = ask.Reply{ExpectedOutput: 1, OutputLimit: 1, Samples: 1}, nil
	c := b.newChoice(&own, s.Owner(at), &part, of, res)
	if rk := b.Ranks.At(cand.Slot); rk != nil {
		whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
		rk.Route(cand.Prefill, max(0, whole-cand.Prefill-cand.Load), b.Clock.Since(d.At))
		c.flight.Rank, c.flight.Pool = rk, req.Replicas
		c.lesson.Open(&b.Learning, rk)
		c.stream.Rank = rk.Conduct // the rank's claims are compared; one token has no pace
		c.observers.add(&c.lesson)
		c.observers.add(&c.stream)
		c.observers.add(&c.flight)
		c.loads(rk, cand)
	}
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		c.belief.Belief = b.Index.Predict(cand.Slot, booking.Hashes, d.At.Add(2*clock.Duration(cand.TTFT)+beliefSlack))
		c.flight.Belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	b.adapt(c, req.Adapter, cand)
	c.observers.add(&c.load)
	c.flight.Enter(&part, booking.PrefillTime, c.reporting)
	return c
}

// joinLegs fills in the legs of a split request's Choice.
func (b *Booker) joinLegs(c *Choice, s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, prefill *load.Reservation, lead *load.Request) {
	d := c.Decision
	w, cand := d.Split(), d.Pick()
	c.legs = &legs{prefill: b.prefillChoice(s, req, of, d, prefill, lead)}
	c.legs.move = follow.Move{
		Clock: b.Clock, Lane: s.Pool.Pairs.Lane(s.Pool.At(w.Prefill.Slot), s.Pool.At(w.Decode.Slot)), Tokens: int(w.Moved),
		Rest: cand.StepTime + cand.Overhead,
		// Behind other prompts the request waits for them, too.
		Counts: c.reporting.Streamed && cand.Backlog+cand.Planned < w.Transfer/4,
	}
	c.observers.add(&c.legs.move)
}
