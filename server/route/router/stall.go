package router

import (
	"context"
	"errors"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// errStalled is why an attempt's context ended: its rank shows no sign of life.
var errStalled = errors.New("the replica has stalled")

// movable puts into ask how the request is told to leave a rank that shows no sign of life: the context that it returns
// ends with errStalled. done must be called when the attempt is over.
func (r *Router) movable(ctx context.Context, j *job, ask *chooser.Request) (_ context.Context, done context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ask.Abandon, ask.Movable = func() { cancel(errStalled) }, r.mayMove(j)
	return ctx, cancel
}

// recalled waits for the word to reach ctx, where the choice was taken back already: telling is the
// last thing that the chooser does.
func recalled(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// mayMove reports whether the request may be tried elsewhere when its rank shows no sign of life. The last try is left
// to its end: a request that every engine takes so long for is not helped by another one.
func (r *Router) mayMove(j *job) bool {
	return j.upload == nil && j.call.Options.Pinned == "" && j.seam == nil && len(j.pool.Replicas) > 1 && j.attempt+1 < j.set.attempts
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
