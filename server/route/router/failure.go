package router

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// failure is an attempt that did not end well.
type failure struct {
	outcome retry.Verdict
	// public is what the client is told when nothing better comes.
	public *apierror.Error
	// resumed: the stream goes on with the next attempt, which is prepared.
	resumed bool
}

// errClientGone is why a Sink refused bytes.
var errClientGone = errors.New("the client disconnected")

// errAnswer is why the registry is asked to look at a replica again.
var errAnswer = errors.New("a request to the replica failed")

// gone marks an error of the Sink, so that it is not taken for the replica's.
func gone(err error) error { return errors.Join(errClientGone, err) }

// refusedPause is how long a replica that wants no more and does not say for how long is left to itself while there are
// others. Who refuses at once has nothing to do, and would be chosen by everybody who comes.
const refusedPause = time.Second

// errOnTrial is what a request meets whose replica is being tried by another request just now.
func errOnTrial() *apierror.Error {
	return apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(time.Second))
}

// hasOther reports whether another replica could have been chosen.
func hasOther(d *decision.Decision) bool {
	pick := d.Pick()
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone && pick != nil && c.Replica != pick.Replica {
			return true
		}
	}
	return false
}

// refusal is an attempt that ended before its answer began. resp is closed.
func (r *Router) refusal(ctx context.Context, j *job, resp *upstream.Response, err error, outcome retry.Verdict) *failure {
	f := &failure{outcome: outcome}
	if err != nil && outcome == retry.Canceled && stalled(ctx) {
		return j.abandoned(err)
	}
	if err != nil {
		f.public = r.unanswered(ctx, outcome, err)
		return f
	}
	defer resp.Close()
	body, readErr := resp.ReadAll(maxErrorBody)
	if readErr != nil && stalled(ctx) {
		return j.abandoned(readErr)
	}
	if readErr != nil && ctx.Err() != nil {
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, readErr))}
	}
	wait, told := retry.After(resp.Header, time.Now())
	if !told && (outcome == retry.Refused || outcome == retry.Unavailable) && hasOther(j.choice.Decision) {
		wait, told = refusedPause, true
	}
	if told {
		r.Breaker.Pause(j.choice.Replica.ID, wait)
	}
	switch outcome {
	case retry.Refused:
		f.public = apierror.New(apierror.Overloaded, "every replica that was tried rejects requests", nil, apierror.WithRetryAfter(max(wait, time.Second)))
	case retry.Unavailable, retry.Gateway:
		f.public = apierror.New(apierror.UpstreamError, "the replica is not available", nil, apierror.WithRetryAfter(max(wait, time.Second)))
		if resp.Status == http.StatusServiceUnavailable {
			f.public = apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(max(wait, time.Second)))
		}
	default: // the engine's own words about this request: 4xx, and what it failed at (500, 501)
		f.public = apierror.Upstream(resp.Status, resp.Header.Get("Content-Type"), body)
	}
	return f
}

// unanswered names a failure without an answer; no address is in its text.
func (r *Router) unanswered(ctx context.Context, outcome retry.Verdict, err error) *apierror.Error {
	switch outcome {
	case retry.Canceled:
		if fault, ok := bodyFault(err); ok {
			return fault
		}
		return apierror.From(cause(ctx, err))
	case retry.Timeout:
		return apierror.New(apierror.UpstreamError, "the replica did not answer in time", err)
	case retry.Malformed:
		return apierror.New(apierror.UpstreamError, "the replica's answer was malformed", err)
	case retry.OwnFault:
		return apierror.New(apierror.Overloaded, "the router cannot open another connection to a replica", err, apierror.WithRetryAfter(time.Second), apierror.WithUnavailable())
	default:
		return apierror.New(apierror.UpstreamUnreachable, "the replica could not be reached", err)
	}
}

// broken is an answer that ended before it was complete.
func (r *Router) broken(ctx context.Context, j *job, err error) *failure {
	switch {
	case stalled(ctx) && !errors.Is(err, errClientGone):
		return j.abandoned(err)
	case errors.Is(err, errClientGone), ctx.Err() != nil:
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, context.Canceled))}
	case !j.begun:
		return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, "the replica closed the connection before it answered", err)}
	}
	return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, "the replica's answer ended early", err)}
}

// mayRetry decides whether another replica is tried after f: only before the client's first byte,
// only after faults that another replica may not have, within the attempts and the budget. The budget keeps a fleet
// in trouble from being asked twice for everything; where a replica is gone, nobody is.
func (r *Router) mayRetry(ctx context.Context, j *job, f *failure) bool {
	if j.begun || !f.outcome.Retryable() || j.attempt+1 >= j.set.attempts || ctx.Err() != nil {
		return false
	}
	if j.upload != nil && j.upload.spent {
		return false
	}
	if j.call.Options.Pinned != "" || j.holder != "" {
		return false
	}
	if free := j.attempt == 0 && f.outcome.Gone(); !free && !r.Budget.Withdraw() {
		return false
	}
	r.metrics.retried(f.outcome)
	noteRetry(ctx, f.outcome)
	r.Log.Info("retrying on another replica", "request", j.call.RequestID, "replica", string(j.choice.Replica.ID), "outcome", f.outcome.String(), "error", f.public)
	return true
}

// endOf says how the decision ended for the record.
func endOf(o retry.Verdict) decision.End {
	switch o {
	case retry.OK:
		return decision.EndCompleted
	case retry.Canceled:
		return decision.EndCanceled
	case retry.ClientFault:
		return decision.EndRejected
	default:
	}
	if o.Retryable() {
		return decision.EndMoved
	}
	return decision.EndFailed
}

// noteRetry leaves the retry on the request's own span.
func noteRetry(ctx context.Context, o retry.Verdict) {
	span.Note(ctx, span.EventRetry, span.Reason.String(o.String()))
}
