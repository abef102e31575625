package chooser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// beliefSlack is how long after twice the predicted first token a prompt is believed to be in
// the cache of its rank when no event says so.
const beliefSlack = 10 * time.Second

// maxRaces is how often a choice is made again because its rank was booked meanwhile; after that
// it is booked as it is.
const maxRaces = 8

// Choose decides which rank serves req and books it there. Under predicted-ttft it waits in the
// hold queue while no suitable rank has room, at most until ctx ends. It returns *NoReplica,
// *Refused, an ErrInvalid, an ErrDuplicate or the context's error.
func (c *Chooser) Choose(ctx context.Context, req *Request) (*Choice, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	choice, t, err := c.begin(req, deadline, nil)
	if t == nil {
		return choice, err
	}
	select {
	case a := <-t.answer:
		return a.choice, a.err
	case <-ctx.Done():
	}
	if t.line.hold.Remove(t.ticket) {
		c.metrics.left.Add(1)
		return nil, ctx.Err()
	}
	// It was released at this very moment: nobody will use the booking.
	if a := <-t.answer; a.choice != nil {
		a.choice.Release(Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
	}
	return nil, ctx.Err()
}

// Submit is Choose without waiting: deliver is called once with the outcome, at once or when the
// hold queue lets the request go, possibly on another goroutine; it must not block. deadline may
// be zero. req must not change until then.
func (c *Chooser) Submit(req *Request, deadline time.Time, deliver func(*Choice, error)) {
	choice, t, err := c.begin(req, deadline, deliver)
	if t == nil {
		deliver(choice, err)
	}
}

// waiter is a request in the hold queue.
type waiter struct {
	req     *Request
	line    *line
	ticket  *holdqueue.Ticket
	answer  chan answer          // of Choose
	deliver func(*Choice, error) // of Submit
	// overlaps is what the index said at matched.
	overlaps []kvindex.Overlap
	matched  time.Time
}

type answer struct {
	choice *Choice
	err    error
}

func (w *waiter) end(choice *Choice, err error) {
	if w.deliver != nil {
		w.deliver(choice, err)
		return
	}
	w.answer <- answer{choice, err}
}

// begin decides at once or puts the request in line; then it returns the waiter.
func (c *Chooser) begin(req *Request, deadline time.Time, deliver func(*Choice, error)) (*Choice, *waiter, error) {
	if err := req.check(); err != nil {
		return nil, nil, err
	}
	ln := c.lineFor(req.Model)
	s := c.scratch.Get().(*scratch)
	defer c.scratch.Put(s)
	now := c.clock()
	if err := c.look(s, req, ln, now, nil); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	holds := s.held
	selector.Choose(&s.d)
	if err := c.unreachable(&s.d, req); err != nil {
		return nil, nil, err
	}
	if !holds || ln.hold.Len() == 0 {
		if s.d.Chosen < 0 || !holds || c.hasRoom(s.d.Pick()) {
			choice, err := c.commit(s, req, ln, now, nil)
			if err != errNoRoom { //nolint:errorlint // never wrapped
				return choice, nil, err
			}
		}
	}
	if s.d.Chosen < 0 {
		choice, err := c.commit(s, req, ln, now, nil)
		return choice, nil, err
	}
	w := &waiter{req: req, line: ln, deliver: deliver}
	if deliver == nil {
		w.answer = make(chan answer, 1)
	}
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Bytes: req.Bytes, Deadline: deadline, Work: s.d.Pick().Prefill, Cost: cost(&s.d), Owner: w,
	}
	servers, soonest := c.room(&s.d)
	if wait, err := ln.hold.Push(w.ticket, now, servers, soonest); err != nil {
		return nil, nil, &Refused{Cause: holdqueue.Cause(err), RetryAfter: max(wait, time.Second)}
	}
	c.metrics.held.Add(1)
	c.pump(ln)
	return nil, w, nil
}

func (req *Request) check() error {
	if req.ID == "" && !req.DryRun {
		return fmt.Errorf("%w: the id is missing", ErrInvalid)
	}
	if p := req.Options.Policy; p != "" && !p.Known() {
		return fmt.Errorf("%w: unknown policy %q", ErrInvalid, p)
	}
	return nil
}

// errNoRoom is commit's word that others took the room meanwhile: the request has to wait like them.
var errNoRoom = errors.New("no room")

// commit books the choice in s, and makes it again when another request was booked on the same
// rank since the loads were read. One that may wait and has not yet gets errNoRoom when no room is left then.
func (c *Chooser) commit(s *scratch, req *Request, ln *line, now time.Time, t *waiter) (*Choice, error) {
	for race := 0; ; race++ {
		d := &s.d
		if d.Chosen < 0 {
			c.metrics.rejected.Add(1)
			d := c.record(s, now)
			c.publish(d)
			return nil, &NoReplica{Decision: d, RetryAfter: time.Second}
		}
		d.Tries = race
		if t != nil {
			d.Held = now.Sub(t.ticket.Arrived())
		}
		cand := d.Pick()
		r := req.Replicas[s.owner[d.Chosen]]
		if req.DryRun || req.Unbooked {
			if req.Unbooked {
				c.teach(d, req, ln, hashesFor(req, cand), now)
			}
			c.shade(d, req)
			d := c.record(s, now)
			c.publish(d)
			return &Choice{Decision: d, Replica: r, Rank: int(cand.Rank), Slot: cand.Slot}, nil
		}
		booking := load.Request{
			ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
			PrefillTokens: int(cand.Uncached), PrefillTime: duration(cand.Prefill * (1 + cand.Slowdown)),
			Hashes: hashesFor(req, cand), BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
			Lease: req.Lease, Unstreamed: req.Unstreamed || req.Lease != 0 && !req.Reports,
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
			c.loads(s, req, now, ln.plannedIf(t != nil))
			selector.Choose(d)
			if t == nil && s.held && d.Chosen >= 0 && !c.hasRoom(d.Pick()) {
				return nil, errNoRoom
			}
		case errors.Is(err, load.ErrNoRank):
			cand.Veto = decision.VetoState
			selector.Choose(d)
		case errors.Is(err, load.ErrEnded), errors.Is(err, load.ErrStale):
			return nil, fmt.Errorf("%w: %w", ErrDuplicate, err)
		case errors.Is(err, load.ErrFull):
			return nil, &Refused{Cause: "reservations_full", RetryAfter: time.Second}
		default:
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
}

// finish makes the Choice of a booking that was made, and tells those who must know.
func (c *Chooser) finish(s *scratch, req *Request, ln *line, now time.Time, res *load.Reservation, booking load.Request) *Choice {
	d := &s.d
	c.shade(d, req)
	both := new(struct {
		choice   Choice
		decision decision.Decision
	})
	d = c.recordIn(&both.decision, s, now)
	cand := d.Pick()
	var stores uint64
	if req.Estimated {
		stores = c.params.Index.Stores(cand.Slot)
	}
	choice := &both.choice
	*choice = Choice{
		Decision: d, Replica: req.Replicas[s.owner[d.Chosen]], Rank: int(cand.Rank), Slot: cand.Slot,
		chooser: c, line: ln, reservation: res, at: now, streamed: !req.Unstreamed, leased: req.Lease != 0, silent: req.Unstreamed || req.Lease != 0 && !req.Reports,
		unread: req.Unread, samples: req.Samples, stores: stores, certain: req.certain(cand),
	}
	if rk := c.rank(cand.Slot); rk != nil && !d.TooLong {
		whole := decision.PrefillTime(cand.TokenTime, cand.Bend, 0, float64(req.PromptTokens))
		rk.route(cand.Prefill, whole-cand.Prefill, c.since(now))
		choice.rank = rk
		choice.learnBooked(now)
	}
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		choice.belief = c.params.Index.Predict(cand.Slot, booking.Hashes, now.Add(2*duration(cand.TTFT)+beliefSlack))
	}
	if !d.TooLong {
		c.teach(d, req, ln, booking.Hashes, now)
	}
	if choice.leased {
		c.booked.Store(bookedName{req.Tenant, req.ID}, choice)
	}
	choice.track(req, booking.PrefillTime)
	c.metrics.decided(d)
	c.publish(d)
	return choice
}

// teach tells those who remember what was sent where.
func (c *Chooser) teach(d *decision.Decision, req *Request, ln *line, hashes []blockhash.Hash, now time.Time) {
	cand := d.Pick()
	if cand.Feed == kvblock.FeedNone && len(hashes) > 0 {
		c.params.Index.Routed(cand.Slot, hashes)
	}
	if d.Policy == decision.ConsistentHash {
		c.metrics.affinity.routed(req.Session, cand.Slot, int(cand.Place))
	}
	if req.Session != "" {
		c.sessions.put(sessionKey{ln, req.Session}, cand.Slot)
	}
	if req.Text != "" {
		if t := ln.tree.Load(); t != nil {
			t.Insert(cand.Slot, req.Text, now)
		}
	}
}

// record copies the decision out of the scratch memory.
func (c *Chooser) record(s *scratch, now time.Time) *decision.Decision {
	return c.recordIn(new(decision.Decision), s, now)
}

func (c *Chooser) recordIn(d *decision.Decision, s *scratch, now time.Time) *decision.Decision {
	*d = s.d
	d.Candidates = slices.Clone(s.d.Candidates)
	d.Took = c.clock().Sub(now)
	return d
}

func (c *Chooser) publish(d *decision.Decision) {
	if c.params.OnDecision != nil {
		c.params.OnDecision(d)
	}
}

// shade asks the shadow policy on a copy and records what it would have done.
func (c *Chooser) shade(d *decision.Decision, req *Request) {
	t := c.settingsOf(req).of(req.Model)
	if t.shadow == "" || t.shadow == d.Policy {
		return
	}
	other := *d
	other.Policy = t.shadow
	other.Params = t.params
	other.Candidates = slices.Clone(d.Candidates)
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
