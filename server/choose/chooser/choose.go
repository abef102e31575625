package chooser

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
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
	if t.leave() {
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
	if !w.waiter.leave() {
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
	// memory is the request's wait for memory; nil: it did not wait for any.
	memory *memoryWait
	// yields is how it lets others pass.
	yields yielding
	// call is its session's in the ledger of programs, full the ranks without memory for it.
	call programs.Call
	full []replica.Slot
	// stream is set while it waits in the hold queue and its first token counts.
	stream bool
}

// left notes that it waits in the hold queue no longer.
func (w *waiter) left() {
	if w.stream {
		w.stream = false
		w.line.streams.Add(-1)
	}
}

// leave takes the request out of line because its caller left; false when its outcome is, or is being, delivered.
func (w *waiter) leave() bool {
	var left bool
	if w.memory != nil {
		left = w.leaveMemory()
	} else {
		if left = w.line.hold.Remove(w.ticket); left {
			w.left()
		}
	}
	if left {
		w.line.memory.leave(&w.call)
	}
	return left
}

type answer struct {
	choice *Choice
	err    error
}

func (w *waiter) end(choice *Choice, err error) {
	w.left()
	if choice == nil {
		w.line.memory.leave(&w.call)
	}
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
	c.arrive(s, req, ln, now)
	choice, w, err := c.place(s, req, ln, deadline, now, deliver)
	if err != nil {
		ln.memory.leave(&s.call)
	}
	return choice, w, err
}

// place decides about a request that was looked at, or puts it in line.
func (c *Chooser) place(s *scratch, req *Request, ln *line, deadline, now time.Time, deliver func(*Choice, error)) (*Choice, *waiter, error) {
	waits := !c.admit(s, ln, now, false)
	s.avoidFull()
	s.choose()
	if err := c.unreachable(&s.d, req); err != nil {
		return nil, nil, err
	}
	if !waits {
		if choice, err := c.bookNow(s, req, ln, now, nil); err != errNoRoom { //nolint:errorlint // never wrapped
			return choice, nil, err
		}
	}
	w := &waiter{req: req, line: ln, deliver: deliver, call: s.call, full: slices.Clone(s.full)}
	if deliver == nil {
		w.answer = make(chan answer, 1)
	}
	if waits {
		if err := c.waitForMemory(s, w, deadline, now); err != nil {
			return nil, nil, err
		}
		return nil, w, nil
	}
	if err := c.wait(s, w, deadline, req.Age, now); err != nil {
		return nil, nil, err
	}
	c.offerRoom(ln)
	return nil, w, nil
}

// bookNow books the pick, or returns errNoRoom when the request must wait in the hold queue.
func (c *Chooser) bookNow(s *scratch, req *Request, ln *line, now time.Time, w *waiter) (*Choice, error) {
	switch {
	case s.d.Chosen < 0, !s.held:
	case ln.hold.Len() > 0, !c.hasRoom(s.d.Pick()), !s.whole && new(yielding).to(s.d.Pick(), now):
		return nil, errNoRoom
	}
	return c.commit(s, req, ln, now, w)
}

// wait puts a request in the hold queue.
func (c *Chooser) wait(s *scratch, w *waiter, deadline time.Time, age time.Duration, now time.Time) error {
	req := w.req
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Age: age, Bytes: req.Bytes, Deadline: deadline, Work: s.d.Pick().Prefill, Cost: cost(&s.d), Owner: w,
	}
	servers, soonest := c.room(&s.d)
	if w.stream = !wholly(req, &s.d); w.stream {
		w.line.streams.Add(1)
	}
	if wait, err := w.line.hold.Push(w.ticket, now, servers, soonest); err != nil {
		w.left()
		return &Refused{Cause: holdqueue.Cause(err), RetryAfter: max(wait, time.Second)}
	}
	c.metrics.held.Add(1)
	return nil
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
