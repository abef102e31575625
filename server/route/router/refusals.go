package router

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// maxErrorBody bounds an engine's error response that is read to be forwarded.
const maxErrorBody = 1 << 20

// failure is why an attempt did not succeed.
type failure struct {
	outcome retry.Verdict
	// unchosen is set when no replica was chosen, so that there is no outcome.
	unchosen bool
	// poisoned is set when the request has stopped two replicas at the same token: it is not tried on another one.
	poisoned bool
	// public is the client's error when no other attempt succeeds.
	public *apierror.Error
}

// Error implements error.
func (f *failure) Error() string { return f.public.Error() }

// errClientGone is why a Sink refused bytes.
var errClientGone = errors.New("the client disconnected")

// errAnswer is why the registry is asked to probe a replica again.
var errAnswer = errors.New("a request to the replica failed")

// errTransfer is why a stream is not used that began with an error instead of the first token.
var errTransfer = errors.New("the replica could not read the cache that another one computed")

// gone marks an error of the Sink, to distinguish it from the replica's.
func gone(err error) error { return errors.Join(errClientGone, err) }

// refusedPause is how long a replica that rejects requests without a Retry-After gets none while there are others. A replica
// that rejects at once is idle, and every request would choose it.
const refusedPause = time.Second

// refusals pauses replicas that reject requests, and words their answers for the client.
type refusals struct{ breaker *breaker.Breaker }

// refusal is an attempt that ended before its answer began. resp is closed.
func (rs *refusals) refusal(ctx context.Context, a *attempt, resp *upstream.Response, err error, outcome retry.Verdict) *failure {
	f := &failure{outcome: outcome}
	if err != nil && outcome == retry.Canceled && a.isStopped(ctx) {
		return a.stoppedBefore(err)
	}
	if err != nil {
		f.public = unanswered(ctx, outcome, err)
		return f
	}
	defer resp.Close()
	body, readErr := resp.ReadAll(maxErrorBody)
	if readErr != nil && a.isStopped(ctx) {
		return a.stoppedBefore(readErr)
	}
	if readErr != nil && ctx.Err() != nil {
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, readErr))}
	}
	wait, known := retry.After(resp.Header, time.Now())
	if !known && (outcome == retry.Refused || outcome == retry.Unavailable) && a.choice.Decision.HasOtherReplica() {
		wait, known = refusedPause, true
	}
	if known {
		rs.breaker.Pause(a.choice.Replica.ID, wait)
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
func unanswered(ctx context.Context, outcome retry.Verdict, err error) *apierror.Error {
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
	case retry.Unsendable:
		return unsendable(err)
	case retry.OwnFault:
		return apierror.New(apierror.Overloaded, "the router cannot open another connection to a replica", err, apierror.WithRetryAfter(time.Second), apierror.WithUnavailable())
	default:
		return apierror.New(apierror.UpstreamUnreachable, "the replica could not be reached", err)
	}
}

// unsendable rejects a request that cannot be written as HTTP.
func unsendable(err error) *apierror.Error {
	var part *upstream.UnsendableError
	if !errors.As(err, &part) {
		return apierror.From(err)
	}
	return apierror.New(apierror.InvalidBody, part.Error(), err, apierror.WithParam(part.Part))
}

// stoppedBefore is the failure of an attempt that was stopped before the client's first byte.
func (h *halt) stoppedBefore(err error) *failure {
	if h.orphaned.Load() {
		return &failure{outcome: retry.EngineError, public: apierror.New(apierror.UpstreamError, errTransfer.Error(), err)}
	}
	if h.moves.Load() {
		return &failure{outcome: retry.Moved, public: apierror.New(apierror.UpstreamError, "the replica drains, and no other one takes the request", err)}
	}
	return &failure{outcome: retry.Stalled, public: apierror.New(apierror.UpstreamError, "the replica has stalled", err)}
}

// broke is broken, and counts.
func (at *attempts) broke(ctx context.Context, d *delivery, err error) *failure {
	if errors.Is(err, resume.ErrAborted) {
		at.aborted.Add(context.Background(), 1)
	}
	return broken(ctx, d, err)
}

// broken is the failure of an answer that ended with err, before it was complete.
func broken(ctx context.Context, d *delivery, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	text := "the replica's answer ended early"
	switch {
	case errors.Is(err, errClientGone):
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, context.Canceled))}
	case errors.Is(err, errStalled), d.attempt.isStopped(ctx):
		if !d.begun {
			return d.attempt.stoppedBefore(err)
		}
		text = "the replica stopped in the middle of its answer"
	case ctx.Err() != nil:
		return &failure{outcome: retry.Canceled, public: apierror.From(cause(ctx, context.Canceled))}
	case errors.Is(err, errTransfer):
		return &failure{outcome: retry.EngineError, public: apierror.New(apierror.UpstreamError, errTransfer.Error(), err)}
	case errors.Is(err, resume.ErrAborted):
		text = resume.ErrAborted.Error()
	case !d.begun:
		text = "the replica's answer ended early, before it began"
	}
	return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, text, err)}
}
