package router

import (
	"context"
	"errors"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// errStalled is why an attempt's context ended: its rank shows no sign of life.
var errStalled = errors.New("the replica has stalled")

// mayMove reports whether the request may be tried elsewhere when its rank shows no sign of life. The last try is left
// to its end: a request that every engine takes so long for is not helped by another one.
func (r *Router) mayMove(j *job) bool {
	return j.upload == nil && j.call.Options.Pinned == "" && j.seam == nil && len(j.pool.Replicas) > 1 && j.attempt+1-j.yields < j.set.attempts
}

// stalled reports whether an attempt under ctx was taken back from a rank that shows no sign of life.
func stalled(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStalled) }

// abandoned is the failure of such an attempt.
func (j *job) abandoned(err error) *failure {
	if j.begun {
		return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, "the replica stopped in the middle of its answer", err)}
	}
	return &failure{outcome: retry.Stalled, public: apierror.New(apierror.UpstreamError, "the replica has stalled", err)}
}
