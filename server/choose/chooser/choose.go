package chooser

import (
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

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
	// It was released at this very moment: no caller will use the booking.
	if a := <-t.answer; a.choice != nil {
		a.choice.Release(Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
	}
	return nil, ctx.Err()
}

// Submit is Choose without waiting: deliver is called once with the outcome, at once or when the
// hold queue releases the request, possibly on another goroutine; it must not block. deadline may
// be zero. req must not change until then. The result is nil when deliver was called already.
func (c *Chooser) Submit(req *Request, deadline time.Time, deliver func(*Choice, error)) *Waiting {
	choice, w, err := c.begin(req, deadline, deliver)
	if w == nil {
		deliver(choice, err)
		return nil
	}
	return &Waiting{c, w}
}

// Waiting is a request that Submit put in the hold queue.
type Waiting struct {
	chooser *Chooser
	waiter  *waiter
}

// Leave takes the request out of the queue. It returns false when the outcome is, or is being, delivered.
func (w *Waiting) Leave() bool {
	if !w.waiter.line.hold.Remove(w.waiter.ticket) {
		return false
	}
	w.chooser.metrics.left.Add(1)
	return true
}

// waiter is a request in the hold queue.
type waiter struct {
	req     *Request
	line    *line
	ticket  *holdqueue.Ticket
	answer  chan answer          // of Choose
	deliver func(*Choice, error) // of Submit
	// overlaps is the index's answer at the time matched.
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
	if s.since = (time.Time{}); req.Age > 0 {
		s.since = now.Add(-req.Age)
	}
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
		Tenant: req.Tenant, Priority: req.Priority, Age: req.Age, Bytes: req.Bytes, Deadline: deadline, Work: s.d.Pick().Prefill, Cost: cost(&s.d), Owner: w,
	}
	servers, soonest := c.room(&s.d)
	if wait, err := ln.hold.Push(w.ticket, now, servers, soonest); err != nil {
		return nil, nil, &Refused{Cause: holdqueue.Cause(err), RetryAfter: max(wait, time.Second)}
	}
	c.metrics.held.Add(1)
	c.offerRoom(ln)
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
