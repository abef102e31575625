package attempt

import (
	"context"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// MaxErrorBody bounds an engine's error response that is read to be forwarded.
const MaxErrorBody = 1 << 20

// refusedPause is how long a replica that rejects requests without a Retry-After gets none while there are others. A replica
// that rejects at once is idle, and every request would choose it.
const refusedPause = time.Second

// refusals pauses replicas that reject requests, and words their answers for the client.
type refusals struct{ breaker *breaker.Breaker }

// Refusal is an attempt that ended before its answer began. resp is closed.
func (rs *refusals) Refusal(ctx context.Context, a *Attempt, resp *upstream.Response, err error, outcome retry.Verdict) *Failure {
	f := &Failure{Outcome: outcome}
	if err != nil && outcome == retry.Canceled && a.isStopped(ctx) {
		return a.stoppedBefore(err)
	}
	if err != nil {
		f.Public = unanswered(ctx, outcome, err)
		return f
	}
	defer resp.Close()
	body, readErr := resp.ReadAll(MaxErrorBody)
	if readErr != nil && a.isStopped(ctx) {
		return a.stoppedBefore(readErr)
	}
	if readErr != nil && ctx.Err() != nil {
		return &Failure{Outcome: retry.Canceled, Public: apierror.From(intake.Cause(ctx, readErr))}
	}
	wait, known := retry.After(resp.Header, time.Now())
	if !known && (outcome == retry.Refused || outcome == retry.Unavailable) && a.Choice.Decision.HasOtherReplica() {
		wait, known = refusedPause, true
	}
	if known {
		rs.breaker.Pause(a.Choice.Replica.ID, wait)
	}
	switch outcome {
	case retry.Refused:
		f.Public = apierror.New(apierror.Overloaded, "every replica that was tried rejects requests", nil, apierror.WithRetryAfter(max(wait, time.Second)))
	case retry.Unavailable, retry.Gateway:
		f.Public = apierror.New(apierror.UpstreamError, "the replica is not available", nil, apierror.WithRetryAfter(max(wait, time.Second)))
		if resp.Status == http.StatusServiceUnavailable {
			f.Public = apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(max(wait, time.Second)))
		}
	default: // the engine's own words about this request: 4xx, and what it failed at (500, 501)
		f.Public = apierror.Upstream(resp.Status, resp.Header.Get("Content-Type"), body)
	}
	return f
}

// unanswered names a failure without an answer; no address is in its text.
func unanswered(ctx context.Context, outcome retry.Verdict, err error) *apierror.Error {
	switch outcome {
	case retry.Canceled:
		if fault, ok := bodyFault(err); ok {
			return fault
		}
		return apierror.From(intake.Cause(ctx, err))
	case retry.Timeout:
		return apierror.New(apierror.UpstreamError, "the replica did not answer in time", err)
	case retry.Malformed:
		return apierror.New(apierror.UpstreamError, "the replica's answer was malformed", err)
	case retry.Unsendable:
		return unsendable(err)
	case retry.OwnFault:
		return apierror.New(apierror.Overloaded, "the router cannot open another connection to a replica", err, apierror.WithRetryAfter(time.Second), apierror.WithUnavailable())
	default:
		return apierror.New(apierror.UpstreamUnreachable, "the replica could not be reached", err)
	}
}
