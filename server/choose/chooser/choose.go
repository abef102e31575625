package chooser

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
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
	choice, t, err := c.room.Begin(req, deadline, nil)
	if t == nil {
		return choice, err
	}
	select {
	case a := <-t.Answer:
		return a.Choice, a.Err
	case <-ctx.Done():
	}
	if t.Leave() {
		return nil, ctx.Err()
	}
	// It was released at this very moment: no caller will use the booking.
	if a := <-t.Answer; a.Choice != nil {
		a.Choice.Release(ask.ResultOf(decision.EndCanceled))
	}
	return nil, ctx.Err()
}

// Submit is Choose without waiting: deliver is called once with the outcome, at once or when the
// hold queue releases the request, possibly on another goroutine; it must not block. deadline may
// be zero. req must not change until then. The result is nil when deliver was called already.
func (c *Chooser) Submit(req *ask.Request, deadline time.Time, deliver func(*booking.Choice, error)) *waiting.Waiter {
	choice, w, err := c.room.Begin(req, deadline, deliver)
	if w == nil {
		deliver(choice, err)
		return nil
	}
	return w
}
