package booking

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// reserveSplit books both ranks of a split request: the rank that prefills only if nothing was booked there since the loads were read.
// It books both or none.
func (b *Booker) reserveSplit(s *evaluate.Evaluation, w *decision.Way, made *booked, checked bool) (err error) {
	if !checked {
		return b.reserveBoth(made)
	}
	if made.prefill, err = b.Book.ReserveIf(s.Versions[s.Pool.At(w.Prefill.Slot)], made.lead); err != nil {
		return err
	}
	return b.reserveDecode(made)
}

// reserveBoth books both ranks of a split request, or none.
func (b *Booker) reserveBoth(made *booked) (err error) {
	if made.prefill, err = b.Book.Reserve(made.lead); err != nil {
		return err
	}
	return b.reserveDecode(made)
}

// reserveDecode books the rank that decodes. Where that fails, the other one's booking is released.
func (b *Booker) reserveDecode(made *booked) (err error) {
	if made.res, err = b.Book.Reserve(made.booking); err != nil {
		made.prefill.Release()
	}
	return err
}

// prefillSuffix distinguishes the reservation of the rank that prefills from the other one's.
const prefillSuffix = "+prefill"

// bookings are a split request's bookings: on cand, which decodes, no prefill, on by nothing else.
func bookings(req *ask.Request, cand, by *decision.Candidate) (booking, lead load.Request) {
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

// prefillChoice makes the Choice of the rank that prefills, cand of owner, for d's pick. learns is set where this router chose: then the rank's
// speed is learned.
func (b *Booker) prefillChoice(owner *replica.Replica, cand *decision.Candidate, req *ask.Request, of *evaluate.Model, d *decision.Decision, made *booked, learns bool) *Choice {
	own := *d
	own.ExpectedOutput, own.Ways, own.Shadow = 1, nil, nil
	own.Ranks = decision.Ranks{Candidates: []decision.Candidate{*cand}, Elsewhere: true}
	part := *req
	part.Reply, part.Observer = ask.Reply{ExpectedOutput: 1, OutputLimit: 1, Samples: 1}, req.PrefillObserver
	c := b.newChoice(&own, owner, &part, of, made.prefill)
	if rk := b.Ranks.At(cand.Slot); rk != nil {
		c.flight.Rank, c.flight.Pool = rk, req.Replicas
		if learns {
			whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
			rk.Route(cand.Prefill, max(0, whole-cand.Prefill-cand.Load), b.Clock.Since(d.At))
			c.lesson.Open(&b.Learning, rk)
			c.stream.Rank = rk.Conduct // the rank's claims are compared; one token has no pace
			c.observers.add(&c.lesson)
			c.observers.add(&c.stream)
			c.loads(rk, cand)
		}
		c.observers.add(follow.Computing{Flight: &c.flight})
	}
	if len(made.lead.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		c.belief.Belief = b.Index.Predict(cand.Slot, made.lead.Hashes, d.At.Add(2*clock.Duration(cand.TTFT)+beliefSlack))
		c.flight.Belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	b.adapt(c, req.Adapter, cand)
	if part.Observer != nil {
		c.observers.add(part.Observer)
	}
	c.observers.add(&c.load)
	c.flight.Enter(&part, made.lead.PrefillTime, c.reporting)
	return c
}

// joinLegs fills in the legs of a split request's Choice.
func (b *Booker) joinLegs(c *Choice, s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, made *booked) {
	d := c.Decision
	w, cand := d.Split(), d.Pick()
	at := s.Pool.At(w.Prefill.Slot)
	c.legs = &legs{prefill: b.prefillChoice(s.Owner(at), &s.Decision.Candidates[at], req, of, d, made, true)}
	c.legs.move = follow.Move{
		Clock: b.Clock, Lane: s.Pool.Pairs.Lane(at, s.Pool.At(w.Decode.Slot)), Tokens: int(w.Moved),
		Rest: cand.StepTime + cand.Overhead,
		// Behind other prompts the request waits for them, too.
		Counts: c.reporting.Streamed && cand.Backlog+cand.Planned < w.Transfer/4,
	}
	if rk := b.Ranks.At(cand.Slot); rk != nil {
		c.legs.move.Fetches = rk.Fetches
	}
	c.observers.add(&c.legs.move)
}
