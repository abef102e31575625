package chooser

import (
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Choose decides which rank serves req and books it there. Under predicted-ttft it waits in the
// hold queue while no suitable rank has room, at most until ctx ends. It returns *NoReplica,
// *Refused, an ErrInvalid, an ErrDuplicate or the context's error.
func (c *Chooser) Choose(ctx context.Context, req *ask.Request) (*booking.Choice, error) {
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
	if (&Waiting{c, t}).Leave() {
		return nil, ctx.Err()
	}
	// It was released at this very moment: no caller will use the booking.
	if a := <-t.answer; a.choice != nil {
		a.choice.Release(ask.ResultOf(decision.EndCanceled))
	}
	return nil, ctx.Err()
}

// Submit is Choose without waiting: deliver is called once with the outcome, at once or when the
// hold queue releases the request, possibly on another goroutine; it must not block. deadline may
// be zero. req must not change until then. The result is nil when deliver was called already.
func (c *Chooser) Submit(req *ask.Request, deadline time.Time, deliver func(*booking.Choice, error)) *Waiting {
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
	w.chooser.metrics.waits.left.Add(1)
	return true
}

// begin decides at once or puts the request in line; then it returns the waiter.
func (c *Chooser) begin(req *ask.Request, deadline time.Time, deliver func(*booking.Choice, error)) (*booking.Choice, *waiter, error) {
	if err := req.Check(); err != nil {
		return nil, nil, err
	}
	ln, now := c.lines.of(req.Model), c.clock.Now()
	var since time.Time
	if req.Age > 0 {
		since = now.Add(-req.Age)
	}
	s := c.evaluator.Borrow(since)
	defer c.evaluator.GiveBack(s)
	if err := c.evaluator.Evaluate(s, req, ln.Model, now, nil); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ask.ErrInvalid, err)
	}
	c.admission.arrive(s, req, ln, now)
	choice, w, err := c.place(s, req, ln, deadline, now, deliver)
	if err != nil {
		ln.Claims.Leave(&s.Program.Call)
	}
	return choice, w, err
}
