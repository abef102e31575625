package router

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/standby"
)

// standbys hold requests for models that are scaled from zero.
type standbys struct{ room *standby.Room }

// wait blocks while the model has no ready replica, if something scales it. Dry runs never wait.
func (s standbys) wait(ctx context.Context, rq *request, model string) error {
	if !s.room.Scales(model) || rq.question != nil && rq.question.Booking == DryRun {
		return nil
	}
	took, err := s.room.Wait(ctx, model, len(rq.call.Body), func() {
		if to := rq.standby.to; to != nil {
			rq.await(to)
		}
	})
	rq.standby.took += took
	switch {
	case err == nil:
		return nil
	case errors.Is(err, standby.ErrFull):
		return apierror.New(apierror.Overloaded, "too many requests wait for the first replica of their model", err, apierror.WithRetryAfter(5*time.Second))
	case errors.Is(err, standby.ErrTimeout):
		return apierror.New(apierror.NoReplica, "no replica of the model `"+clip(model, 128)+"` was started in time", err, apierror.WithRetryAfter(5*time.Second))
	case errors.Is(err, standby.ErrClosed):
		return apierror.New(apierror.ShuttingDown, "the router is stopping", err)
	}
	return apierror.From(cause(ctx, err))
}
