package chooser

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// legs are the extra state of a split request's Choice: the Choice of the rank that prefills, and the move of the cache.
type legs struct {
	prefill *Choice
	move    move
}

// Prefill returns the Choice of the rank that computes the prompt for this one; nil where the request is served whole. It is booked like
// any other and must be ended with Release.
func (c *Choice) Prefill() *Choice {
	if c.legs == nil {
		return nil
	}
	return c.legs.prefill
}

// Sent notes that the request goes to the rank that decodes, which has the cache to read: from now on its silence counts.
func (c *Choice) Sent() {
	if c.legs == nil {
		return
	}
	now := c.clock.now()
	c.legs.move.sent.Store(c.clock.since(now))
	c.flight.join(now)
}

// PredictedMove is the predicted time of the move of the cache; 0 where the request is served whole.
func (c *Choice) PredictedMove() time.Duration {
	if w := c.Decision.Split(); w != nil {
		return duration(w.Transfer)
	}
	return 0
}

// move is the transfer of a split request's cache. It is an Observer.
type move struct {
	clock  *clock
	lane   *transfer.Lane
	tokens int
	// rest is the predicted time in seconds from the end of the transfer to the first token.
	rest float64
	sent atomic.Int64 // on the chooser's scale; 0: not yet
	// counts is set when the time to the first token shows the transfer's.
	counts bool
}

// FirstToken implements Observer: the lane learns the time of the transfer.
func (m *move) FirstToken(now time.Time, _ int) {
	sent := m.sent.Load()
	if sent == 0 || !m.counts {
		return
	}
	took := time.Duration(m.clock.since(now) - sent).Seconds()
	m.lane.Learn(m.tokens, max(took-m.rest, took/4))
}

// Progress implements Observer.
func (*move) Progress(int) {}

// Ended implements Observer.
func (*move) Ended(*End) {}

// reserveSplit books both ranks of a split request: the rank that prefills only if nothing was booked there since the loads were read.
// It books both or none.
func (b *booker) reserveSplit(s *evaluation, w *decision.Way, booking, lead load.Request, checked bool) (prefill, res *load.Reservation, err error) {
	if checked {
		prefill, err = b.book.ReserveIf(s.versions[s.pool.at(w.Prefill.Slot)], lead)
	} else {
		prefill, err = b.book.Reserve(lead)
	}
	if err != nil {
		return nil, nil, err
	}
	if res, err = b.book.Reserve(booking); err != nil {
		prefill.Release()
		return nil, nil, err
	}
	return prefill, res, nil
}

// prefillSuffix distinguishes the reservation of the rank that prefills from the other one's.
const prefillSuffix = "+prefill"

// bookings are a split request's bookings: on the rank that decodes no prefill, on the other one nothing else.
func (req *Request) bookings(s *evaluation) (booking, lead load.Request) {
	cand, by := s.d.Pick(), s.computes()
	booking = load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		Hashes: req.hashesFor(cand), BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Unstreamed: true, // there is no prefill that its first token would end
		Again:      req.Again,
	}
	lead = load.Request{
		ID: req.ID + prefillSuffix, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: by.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(by.Uncached), PrefillTime: duration(by.Prefill * (1 + by.Slowdown)),
		Hashes: req.hashesFor(by), BlockSize: int(by.BlockSize), ExpectedTokens: 1, Again: req.Again,
	}
	return booking, lead
}

// prefillChoice makes the Choice of the rank that prefills for d's pick.
func (b *booker) prefillChoice(s *evaluation, req *Request, of *remembered, d *decision.Decision, res *load.Reservation, booking *load.Request) *Choice {
	at := s.pool.at(d.Split().Prefill.Slot)
	cand := &s.d.Candidates[at]
	own := *d
	own.ExpectedOutput, own.Ways, own.Shadow = 1, nil, nil
	own.Ranks = decision.Ranks{Candidates: []decision.Candidate{*cand}, Elsewhere: true}
	ask := *req
	ask.Reply, ask.Observer = Reply{ExpectedOutput: 1, OutputLimit: 1, Samples: 1}, nil
	c := b.newChoice(&own, s.owner(at), &ask, of, res)
	if rk := b.ranks.at(cand.Slot); rk != nil {
		whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
		rk.route(cand.Prefill, whole-cand.Prefill, b.clock.since(d.At))
		c.flight.rank, c.flight.pool = rk, req.Replicas
		c.lesson.open(&b.learning, rk)
		c.stream.rank = rk.conduct // the rank's claims are compared; one token has no pace
		c.observers.add(&c.lesson)
		c.observers.add(&c.stream)
		c.observers.add(&c.flight)
	}
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		c.belief.Belief = b.index.Predict(cand.Slot, booking.Hashes, d.At.Add(2*duration(cand.TTFT)+beliefSlack))
		c.flight.belief = c.belief.Belief
		c.observers.add(&c.belief)
	}
	c.observers.add(&c.load)
	c.flight.enter(&ask, booking.PrefillTime, c.reporting)
	return c
}

// joinLegs fills in the legs of a split request's Choice.
func (b *booker) joinLegs(c *Choice, s *evaluation, req *Request, of *remembered, prefill *load.Reservation, lead *load.Request) {
	d := c.Decision
	w, cand := d.Split(), d.Pick()
	c.legs = &legs{prefill: b.prefillChoice(s, req, of, d, prefill, lead)}
	c.legs.move = move{
		clock: b.clock, lane: s.pool.pairs.lane(s.pool.at(w.Prefill.Slot), s.pool.at(w.Decode.Slot)), tokens: int(w.Moved),
		rest: cand.StepTime + cand.Overhead,
		// Behind other prompts the request waits for them, too.
		counts: c.streamed && cand.Backlog+cand.Planned < w.Transfer/4,
	}
	c.observers.add(&c.legs.move)
}

// decoding is a split request in the account of the speed of the rank that decodes: of its time to the first token, the rank's
// part is not known. It is an Observer.
type decoding struct{ *lesson }

// FirstToken implements Observer.
func (l decoding) FirstToken(now time.Time, _ int) {
	view := l.book.View(l.rank.slot, now)
	l.mu.Lock()
	l.mark.set(now, 0, &view)
	l.mu.Unlock()
}

// Ended implements Observer.
func (l decoding) Ended(end *End) {
	if !end.First.IsZero() && end.completed() {
		l.steps(end.At, end.Output)
	}
}
