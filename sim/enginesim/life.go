package enginesim

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/feed"
)

// life is one engine process: the state that a restart loses.
type life struct {
	*Engine
	ranks
	started time.Time
	surface surface
	load    atomic.Int64 // requests in flight, as /load reports them
	meters  meters
	stored  responseStore
	// engineID names the process to others that read its cache, met has the names of those met so far.
	engineID string
	met      sync.Map
	work     sync.WaitGroup // background responses
	sleep    slumber
	sockets  sockets
}

func newLife(e *Engine, n uint64) *life {
	l := &life{Engine: e, started: time.Now(), surface: surfaceOf(&e.features, &e.cfg)}
	l.trouble, l.layout, l.pins = &e.faults, e.features.layout, e.features.has(rankHeader)
	if e.cfg.BytesHashes {
		l.layout |= feed.Bytes
	}
	l.engineID = e.newID()
	e.adapters.reset(e.cfg.Adapters)
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
	// Requests end with the life, after its connections: net/http does not notice a closed connection while a body is unread.
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	server := &http.Server{
		Handler:     http.HandlerFunc(l.serve),
		BaseContext: func(net.Listener) context.Context { return requests },
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
		defer end()
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
