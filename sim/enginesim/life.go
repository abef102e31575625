package enginesim

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/feed"
)

// life is one engine process: what a restart loses.
type life struct {
	*Engine
	started time.Time
	surface surface
	cores   []*core.Core
	pubs    []*zmtp.Publisher // empty when there are no events
	batches atomic.Uint64     // event batches so far, for the faults that count them
	turn    atomic.Uint64     // for the balancer between ranks
	load    atomic.Int64      // requests in flight, as /load reports them
	meters  meters
	stored  responseStore
	work    sync.WaitGroup // background responses
	sockets sockets
}

func newLife(e *Engine, n uint64) *life {
	l := &life{Engine: e, started: time.Now(), surface: surfaceOf(&e.features, e.cfg.Rust)}
	cfg := e.cfg.Core
	cfg.EarlyEvents = !e.features.has(lateEvents)
	cfg.Seed += n * 0x9e3779b97f4a7c15
	for rank := range e.cfg.Ranks {
		emit := func([]core.Event) {}
		if len(e.events) > 0 {
			l.pubs = append(l.pubs, zmtp.NewPublisher(zmtp.PublisherParams{
				Topic: e.cfg.Topic, Buffer: e.cfg.ReplayBuffer, ReplayTopic: e.features.has(replayTopic),
			}))
			emit = func(events []core.Event) { l.publish(rank, events) }
		}
		c := core.New(cfg, emit)
		c.Pause(e.faults.get().Stall)
		l.cores = append(l.cores, c)
	}
	return l
}

// run serves this life until ctx ends.
func (l *life) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	defer l.work.Wait()
	for _, c := range l.cores {
		group.Go(func() error { c.Run(ctx); return nil })
	}
	for rank, pub := range l.pubs {
		ln := l.events[rank].open()
		group.Go(func() error { return quiet(ctx, pub.Serve(ctx, ln)) })
		if len(l.replays) > 0 {
			rl := l.replays[rank].open()
			group.Go(func() error { return quiet(ctx, pub.ServeReplay(ctx, rl)) })
		}
	}
	server := &http.Server{
		Handler:     http.HandlerFunc(l.serve),
		IdleTimeout: l.cfg.KeepAlive,
		ErrorLog:    nil,
	}
	if l.cfg.KeepAlive == 0 {
		server.SetKeepAlivesEnabled(false)
	}
	ln := l.http.open()
	group.Go(func() error {
		err := server.Serve(ln)
		return quiet(ctx, err)
	})
	group.Go(func() error {
		<-ctx.Done()
		l.sockets.end()
		return server.Close()
	})
	return group.Wait()
}

// quiet drops the error of a listener that closed because the life ended.
func quiet(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, errClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// publish sends a step's events, unless a fault says otherwise.
func (l *life) publish(rank int, events []core.Event) {
	f := l.faults.get()
	layout := l.features.layout
	if l.cfg.BytesHashes {
		layout |= feed.Bytes
	}
	if f.LieEvents {
		layout |= feed.Lie
	}
	n := l.batches.Add(1)
	pub := l.pubs[rank]
	switch {
	case f.StopEvents:
	case f.HoleEvents > 0 && n%uint64(f.HoleEvents) == 0:
		pub.Skip(1)
	case f.DropEvents > 0 && n%uint64(f.DropEvents) == 0:
		pub.Lose(feed.Encode(nil, layout, time.Now(), rank, events))
	default:
		pub.Publish(feed.Encode(nil, layout, time.Now(), rank, events))
	}
}

// pick chooses the rank of a request without a pin: the least loaded, in turn.
func (l *life) pick() int {
	if len(l.cores) == 1 {
		return 0
	}
	best, least := 0, int(^uint(0)>>1)
	from := int(l.turn.Add(1))
	for i := range l.cores {
		at := (from + i) % len(l.cores)
		s := l.cores[at].Stats()
		if n := s.Running + s.Waiting; n < least {
			best, least = at, n
		}
	}
	return best
}
