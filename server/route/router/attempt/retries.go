package attempt

import (
	"context"
	"log/slog"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Retrier decides whether a request is tried on another replica after an attempt.
type Retrier struct {
	blame   *blame
	Budget  *retry.Budget
	retried *instruments.Keyed[retry.Verdict]
	count   Counter
	log     *slog.Logger
}

// Run makes attempts, one after the other, until one has answered or the request must end. The failure is the client's.
func (rt *Retrier) Run(ctx context.Context, rq *intake.Request, t *Tries, d *Delivery, once func() *Failure) *Failure {
	rt.Budget.Deposit()
	for {
		f := once()
		if f == nil || !rt.elsewhere(ctx, rq, t, d, f) {
			return f
		}
		t.Next(d.Attempt, f)
		if f.Outcome == retry.Moved {
			t.Readmit(d.Attempt, rt.blame.registry.Snapshot())
		}
	}
}

// elsewhere reports whether another replica is tried after f. Another replica is tried only before the client's first byte, only after faults that
// another replica may not have, within the attempts and the budget. The budget keeps a fleet in trouble from being asked
// twice for everything; the first retry after a replica is gone, or was used although its breaker is open, is free.
func (rt *Retrier) elsewhere(ctx context.Context, rq *intake.Request, t *Tries, d *Delivery, f *Failure) bool {
	switch {
	case f.Unchosen, f.Poisoned, d.begun, ctx.Err() != nil, !f.Outcome.Retryable(), t.tried()+1 >= rq.Settings.Attempts:
		return false
	case rq.Call.Options.Pinned != "", rq.Holder != "", rq.Upload != nil && rq.Upload.Spent: // no other replica can serve it
		return false
	case !rt.Worth(rq, t, d, f):
		return false
	case t.tried() == 0 && (f.Outcome.Gone() || d.Attempt.forced):
	case !rt.Withdraw(rq, d, f):
		return false
	}
	rt.Note(ctx, f)
	rt.log.Info("retrying on another replica", "request", rq.Call.RequestID, "replica", string(d.Attempt.Choice.Replica.ID), "outcome", f.Outcome.String(), "cause", d.doubts.Cause.String(), "error", f.Public)
	return true
}

// Note counts a retry after f, and leaves it on the request's span.
func (rt *Retrier) Note(ctx context.Context, f *Failure) {
	rt.retried.Add(f.Outcome)
	rt.Again()
	span.Note(ctx, span.EventRetry, span.Reason.String(f.Outcome.String()))
}

// knownPoison is how often two replicas must have failed a request before it is tried on two replicas at most, where
// the failures may be those of a fleet in trouble.
const knownPoison = 5

// Worth reports whether another replica may do better, as far as the request is known. An engine's error is compared with one
// other replica, unless the tenant is suspected, where a repetition changes nothing.
func (rt *Retrier) Worth(rq *intake.Request, t *Tries, d *Delivery, f *Failure) bool {
	if !f.Outcome.Follows() {
		return true
	}
	times := rt.blame.times(rq, d)
	if f.Outcome == retry.EngineError {
		return !d.doubts.Alike() && times == 0 && rq.Call.Route != openai.RouteOther && !rt.blame.suspects(rq, d)
	}
	return times < knownPoison || t.tried() == 0
}

// Withdraw takes a retry from the budget. A tenant whose requests fail on several replicas leaves half of it to the others.
func (rt *Retrier) Withdraw(rq *intake.Request, d *Delivery, f *Failure) bool {
	if f.Outcome.Follows() && rt.blame.suspects(rq, d) {
		return rt.Budget.WithdrawSpare()
	}
	return rt.Budget.Withdraw()
}

// Again counts an attempt that is repeated or continued on another replica.
func (rt *Retrier) Again() {
	if rt.count != nil {
		rt.count.Retried()
	}
}

// Counter counts requests as their clients see them, each once, whatever number of replicas is tried for it. It must not block.
type Counter interface {
	// Served counts a request that ended after a replica was chosen for it; failed says that its client got a failure.
	Served(failed bool)
	// Unserved counts a request that was answered with 429 or a server error before any replica was chosen, by the error's reason.
	Unserved(reason string)
	// Retried counts an attempt that is repeated or continued on another replica.
	Retried()
}
