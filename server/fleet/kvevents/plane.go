package kvevents

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// Sink receives the events that the feeds read. Calls for one slot come from one goroutine at a time and in
// order; slots run in parallel. Arguments are valid until the call returns. A Sink must
// not call the Plane back.
type Sink interface {
	Store(slot replica.Slot, ev *kvblock.Stored)
	Remove(slot replica.Slot, ev *kvblock.Removed)
	// Clear empties one tier, or all.
	Clear(slot replica.Slot, tier kvblock.Tier, all bool)
	// Reset forgets everything this rank held: a new engine life, or lost events.
	Reset(slot replica.Slot)
	SetState(slot replica.Slot, s kvblock.FeedState)
}

// Params are the arguments of New. Log and Meter may be nil.
type Params struct {
	Sink  Sink
	Scope scope.Scope
}

// maxFeeds bounds the ranks of one Plane.
const maxFeeds = 1 << 14

// tickEvery is the time between two ticks of a feed.
const tickEvery = 250 * time.Millisecond

// Plane runs the feeds of all ranks. Its methods may be called at any time and from any
// goroutine, before and during Run.
type Plane struct {
	config  Config
	sink    Sink
	log     *slog.Logger
	metrics *metrics

	runnable  chan *feed    // each feed at most once
	replays   chan struct{} // room for replays at the same time
	messages  sync.Pool     // of *zmtp.Message
	queued    atomic.Int64  // bytes in all queues
	delayed   atomic.Int64  // until when first replays wait, in Unix nanoseconds
	perFeed   int64         // bytes that one queue may hold, or one batch
	slotsTurn sync.Mutex    // one Add, Remove or Run at a time

	mu      sync.Mutex
	feeds   map[replica.Slot]*feed                       // guarded by mu
	binders map[string]*binder                           // guarded by mu
	live    func() (context.Context, context.CancelFunc) // guarded by mu; nil before and after Run: makes the context of a new goroutine
	running sync.WaitGroup
}

// New returns a Plane without feeds. Nothing runs before Run.
func New(c Config, p Params) *Plane {
	pl := &Plane{
		config: c, sink: p.Sink, log: p.Scope.Log(),
		runnable: make(chan *feed, maxFeeds),
		replays:  make(chan struct{}, 32),
		perFeed:  int64(c.QueueBytes) / 8,
		feeds:    map[replica.Slot]*feed{},
		binders:  map[string]*binder{},
	}
	pl.messages.New = func() any { return new(zmtp.Message) }
	pl.metrics = newMetrics(p.Scope.Meters(), pl)
	return pl
}

// Run follows the feeds until ctx ends and returns when everything has stopped. It is called once.
func (p *Plane) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.slotsTurn.Lock()
	p.mu.Lock()
	p.live = func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	waiting := make([]*feed, 0, len(p.feeds))
	for _, f := range p.feeds {
		waiting = append(waiting, f)
	}
	p.mu.Unlock()
	for _, f := range waiting {
		p.start(f)
	}
	p.slotsTurn.Unlock()

	for range p.workers() {
		p.running.Go(func() { p.work(ctx) })
	}
	p.tick(ctx)

	p.slotsTurn.Lock() // no Add is halfway through starting something
	p.mu.Lock()
	p.live = nil
	p.mu.Unlock()
	p.slotsTurn.Unlock()
	p.running.Wait()
	return nil
}

func (p *Plane) workers() int {
	if p.config.Workers > 0 {
		return p.config.Workers
	}
	return max(2, runtime.GOMAXPROCS(0)/2)
}

// Add follows the feed of the rank in slot; label names it in logs, metrics and Status. A rank without
// an endpoint has the state FeedNone. Adding a slot again with other sockets moves its feed: the
// blocks stay if the engine behind the new sockets proves to be the same, else they go.
func (p *Plane) Add(slot replica.Slot, events replica.Events, label string) {
	p.slotsTurn.Lock()
	defer p.slotsTurn.Unlock()
	p.mu.Lock()
	old := p.feeds[slot]
	full := old == nil && len(p.feeds) >= maxFeeds
	p.mu.Unlock()
	if full {
		p.log.Error("too many KV event feeds; this rank's cache stays unknown", "rank", label, "limit", maxFeeds)
		return
	}
	if old != nil && old.events == events {
		return
	}
	f := newFeed(p, slot, events, label)
	if old != nil {
		p.stop(old)
		f.inherit(old)
	}
	p.mu.Lock()
	p.feeds[slot] = f
	started := p.live != nil
	p.mu.Unlock()
	if started {
		p.start(f)
	}
}

// Remove ends the feed of slot. When it returns, the Sink gets no more calls for the slot.
func (p *Plane) Remove(slot replica.Slot) {
	p.slotsTurn.Lock()
	defer p.slotsTurn.Unlock()
	p.mu.Lock()
	f := p.feeds[slot]
	delete(p.feeds, slot)
	p.mu.Unlock()
	if f != nil {
		p.stop(f)
	}
}

// Restarted notes that the engine process of slot is a new one, which began at the given moment. Unless
// the feed has noticed that itself since, its blocks are forgotten at once and read again.
func (p *Plane) Restarted(slot replica.Slot, began time.Time) {
	p.mu.Lock()
	f := p.feeds[slot]
	p.mu.Unlock()
	if f != nil {
		f.inbox.restarted.Store(began.UnixNano())
		f.schedule()
	}
}

// Status reports on one rank's feed; ok is false when the slot has none.
func (p *Plane) Status(slot replica.Slot) (s Status, ok bool) {
	p.mu.Lock()
	f := p.feeds[slot]
	p.mu.Unlock()
	if f == nil {
		return Status{}, false
	}
	return f.report(), true
}

// Statuses reports on all feeds, ordered by slot.
func (p *Plane) Statuses() []Status {
	p.mu.Lock()
	feeds := make([]*feed, 0, len(p.feeds))
	for _, f := range p.feeds {
		feeds = append(feeds, f)
	}
	p.mu.Unlock()
	list := make([]Status, len(feeds))
	for i, f := range feeds {
		list[i] = f.report()
	}
	slices.SortFunc(list, func(a, b Status) int { return int(a.Slot) - int(b.Slot) })
	return list
}

// start starts f's goroutines. The caller holds slotsTurn, and Run has begun.
func (p *Plane) start(f *feed) {
	ctx, cancel := p.life()
	f.cancel = cancel
	f.spawn = func(job func(context.Context)) { p.running.Go(func() { job(ctx) }) }
	f.started.Store(true)
	f.schedule() // the sink hears the first state
	switch {
	case f.events.Endpoint == "":
	case f.events.Bind:
		p.bind(f)
	default:
		p.running.Go(func() { f.dialLoop(ctx) })
	}
}

// life returns the context of a goroutine. The caller holds slotsTurn, and Run has begun.
func (p *Plane) life() (context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

// stop ends f and waits until it makes no more calls. The caller holds slotsTurn.
func (p *Plane) stop(f *feed) {
	f.closed.Store(true)
	if f.cancel != nil {
		f.cancel()
	}
	if f.events.Bind {
		p.unbind(f)
	}
	f.turn.Lock() // a worker that has its turn now finishes it; none starts another
	f.discard()
	f.turn.Unlock()
}

// work runs feeds that have something to do until ctx ends.
func (p *Plane) work(ctx context.Context) {
	var d vllm.Decoder
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-p.runnable:
			f.takeTurn(&d)
		}
	}
}

// tick gives every feed a turn each tickEvery, until ctx ends.
func (p *Plane) tick(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		for _, f := range p.feeds {
			f.inbox.tickDue.Store(true)
			f.schedule()
		}
		p.mu.Unlock()
	}
}
