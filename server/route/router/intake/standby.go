package intake

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/standby"
)

// Standbys hold requests for models that are scaled from zero.
type Standbys struct{ room *standby.Room }

// Wait blocks while the model has no ready replica, if something scales it. Dry runs never wait.
func (s Standbys) Wait(ctx context.Context, rq *Request, model string) error {
	if !s.room.Scales(model) || rq.Question != nil && rq.Question.Booking == DryRun {
		return nil
	}
	took, err := s.room.Wait(ctx, model, len(rq.Call.Body), func() {
		if to := rq.Standby.To; to != nil {
			rq.Await(to)
		}
	})
	rq.Standby.Took += took
	switch {
	case err == nil:
		return nil
	case errors.Is(err, standby.ErrFull):
		return apierror.New(apierror.Overloaded, "too many requests wait for the first replica of their model", err, apierror.WithRetryAfter(5*time.Second))
	case errors.Is(err, standby.ErrTimeout):
		return apierror.New(apierror.NoReplica, "no replica of the model `"+Clip(model, 128)+"` was started in time", err, apierror.WithRetryAfter(5*time.Second))
	case errors.Is(err, standby.ErrClosed):
		return apierror.New(apierror.ShuttingDown, "the router is stopping", err)
	}
	return apierror.From(Cause(ctx, err))
}
