package grpcapi

import (
	"context"

	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// life is the time in which lasting streams run.
type life struct {
	ended context.Context
	leave context.CancelFunc
}

func newLife() *life {
	l := &life{}
	l.ended, l.leave = context.WithCancel(context.Background())
	return l
}

// Leave ends the streams that would otherwise never end (watches), so that a shutdown need not
// wait for them. Calls that answer are not affected. It is idempotent.
func (l *life) Leave() { l.leave() }

// lasting is the context of a stream that ends with the router.
func (l *life) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ended, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// endOnLeave ends a call that receives messages when the router leaves. The caller calls stop when the call has ended.
func (l *life) endOnLeave(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(l.ended, func() {
		if e := httpcall.From(ctx); e != nil {
			if e.Live != nil {
				e.Live.End(shuttingDown())
			}
		} else if c := guard.FromContext(ctx); c != nil {
			c.End(shuttingDown())
		}
	})
}

// untilLeave runs a stream that is none of the contract's and reads messages, until it ends or the router leaves.
func (l *life) untilLeave(run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-l.ended.Done(): // run ends with its stream
		return shuttingDown()
	}
}

// stopped is how a lasting stream ends: its caller left, or the router does.
func stopped(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return shuttingDown()
}
