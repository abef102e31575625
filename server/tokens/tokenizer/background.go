package tokenizer

import (
	"context"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// backgroundQueue bounds the calls that wait for their turn in the background, per running one.
const backgroundQueue = 64

// background is the work behind early answers: a few pieces at once, and a bounded number that wait.
type background struct {
	flights *flights
	metrics *metrics
	turns   chan struct{} // one token per running piece
	limit   int64
	queued  atomic.Int64 // waiting and running pieces
}

func newBackground(atOnce int, f *flights, m *metrics) *background {
	return &background{flights: f, metrics: m, turns: make(chan struct{}, max(1, atOnce)), limit: int64(atOnce) * backgroundQueue}
}

// full reports whether no further piece would be taken.
func (b *background) full() bool { return b.queued.Load() >= b.limit }

// behind completes a prompt's ids after an early answer. When too much waits already it is
// left out: the conversation's next turn then starts from an older beginning.
func (b *background) behind(ctx context.Context, key cache.Key, do work) {
	if b.queued.Add(1) > b.limit {
		b.queued.Add(-1)
		b.metrics.Skipped.Add(ctx, 1)
		return
	}
	b.flights.detached(ctx, key, func(ctx context.Context) (*entry, Source, error) {
		defer b.queued.Add(-1)
		select {
		case b.turns <- struct{}{}:
			defer func() { <-b.turns }()
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
		return do(ctx)
	}, func() { b.queued.Add(-1) })
}
