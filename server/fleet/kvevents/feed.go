package kvevents

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

const (
	turnItems = 256                  // batches in one turn, so that a busy feed does not starve others
	turnTime  = 2 * time.Millisecond // the same, in time
)

// feed follows one rank. Readers push what arrives into its queue; only the worker that has the turn
// takes it out and touches the state below turn.
type feed struct {
	plane  *Plane
	slot   replica.Slot
	events replica.Events
	label  string

	epochs    atomic.Uint64 // numbers connections
	scheduled atomic.Bool   // in Plane.runnable, or having its turn
	started   atomic.Bool   // cancel and spawn are set
	closed    atomic.Bool
	restarted atomic.Int64 // when a new engine process began, as other parts noticed; 0: none
	tickDue   atomic.Bool
	// malformedDue: a message came that is no batch. odd are the kinds of oddities that were logged.
	malformedDue atomic.Bool
	odd          atomic.Uint32
	waiting      atomic.Bool // live batches wait for a replay
	pauses       atomic.Uint64
	queue        queue
	replies      chan reply
	cancel       context.CancelFunc
	spawn        func(func(context.Context)) // starts a goroutine that ends with the feed

	turn  sync.Mutex // held by the worker that runs the feed; everything below belongs to it
	d     *vllm.Decoder
	pos   position
	conn  connection
	rec   *recovery // nil: no replay is running
	gap   gap
	lives lives
	jobs  uint64 // numbers replay requests
	// rereadAt is when a replay was last asked for a batch that could not be read.
	rereadAt     time.Time
	published    publication
	replaySocket replaySocket
	instance     string // the name of the engine process, if it has one

	reportMu sync.Mutex
	status   Status // guarded by reportMu
}

// position is how far the feed has come in the engine's numbering.
type position struct {
	known    bool   // next is meaningful
	next     uint64 // the batch expected next
	print    uint64 // of batch next-1, to recognise the engine life
	hasPrint bool
	by       publisher // of this engine life; zero: the engine does not name it
	exact    bool      // everything since the engine's start was applied
	lower    bool      // this life has published events of tiers below the GPU
	dirty    bool      // the sink may hold something
	partial  bool      // a replay failed that could have brought more; it is worth another attempt
	barren   bool      // replays of this life hold nothing
	replayed bool      // replays of this life hold something
	unproven bool      // another feed gave it, and no event has confirmed it yet
	// unchecked: it rests on replays of a socket that was not compared with the live feed since.
	unchecked bool
}

// connection is what is known about the event socket.
type connection struct {
	up      bool
	epoch   uint64
	downAt  time.Time
	live    sample // the newest batch on this connection
	hasLive bool
	trusted bool // the engine behind it was shown to be the one we know, or there was none
	// doubtful: replays of the engine that was known held nothing, so that no replay can show whether this is
	// the same one. It ends with the first batch.
	doubtful bool
	heard    time.Time // last batch, live or replayed
	probeAt  time.Time // when to look for lost events
	proof    proof     // whether the replay socket belongs to the same engine
	// compareAt is when that is looked at again, after a proof that failed.
	compareAt time.Time
	// misses are comparisons whose replay began too late; unseen probes that found batches before any came live.
	misses, unseen int
}

// publication is what the rest of the router knows of the feed.
type publication struct {
	state   kvblock.FeedState
	any     bool
	problem string
}

func newFeed(p *Plane, slot replica.Slot, events replica.Events, label string) *feed {
	f := &feed{plane: p, slot: slot, events: events, label: label, replies: make(chan reply, maxReplies), queue: newQueue()}
	f.conn.downAt = time.Now()
	f.status = Status{Slot: slot, Label: label, Endpoint: events.Endpoint, Replay: events.Replay}
	if events.Endpoint != "" {
		f.status.State = kvblock.FeedCold
		f.pos.dirty = true // the sink may have brought something from an earlier run
	}
	return f
}

// inherit copies what old knew, so that the same engine continues behind new sockets.
func (f *feed) inherit(old *feed) {
	f.pos, f.published, f.lives, f.instance = old.pos, old.published, old.lives, old.instance
	f.replaySocket = old.replaySocket
	s := old.report()
	s.Label, s.Endpoint, s.Replay = f.label, f.events.Endpoint, f.events.Replay
	f.status = s
}

// schedule asks for a turn. It never blocks.
func (f *feed) schedule() {
	if f.closed.Load() || !f.started.Load() || !f.scheduled.CompareAndSwap(false, true) {
		return
	}
	select {
	case f.plane.runnable <- f:
	default:
		f.scheduled.Store(false) // more feeds than there can be: the next tick asks again
	}
}

func (f *feed) takeTurn(d *vllm.Decoder) {
	f.turn.Lock()
	if !f.closed.Load() {
		f.d = d
		f.run()
		f.d = nil
	}
	f.turn.Unlock()
	f.scheduled.Store(false)
	if f.hasWork() {
		f.schedule()
	}
}

func (f *feed) hasWork() bool {
	if f.restarted.Load() != 0 || f.tickDue.Load() || f.malformedDue.Load() || len(f.replies) > 0 {
		return true
	}
	n, _ := f.queue.size()
	return n > 0 && !f.waiting.Load()
}

// run handles what has happened, for at most one turn.
func (f *feed) run() {
	if f.events.Endpoint == "" {
		f.reset("no feed")
		f.pos = position{}
	}
	if began := f.restarted.Swap(0); began != 0 && f.pos.known && f.lives.latest.UnixNano() < began {
		f.newLife("the engine process is a new one")
	}
	if f.malformedDue.Swap(false) {
		f.pos.exact = false
	}
	if f.tickDue.Swap(false) {
		f.onTick(time.Now())
	}
	started := time.Now()
	for n := 0; n < turnItems; n++ {
		if n%16 == 15 && time.Since(started) > turnTime {
			break
		}
		if !f.step() {
			break
		}
	}
	f.waiting.Store(f.rec != nil)
	f.publish()
}

// step handles one item and reports whether there was one.
func (f *feed) step() bool {
	select {
	case r := <-f.replies:
		f.onReply(r)
		return true
	default:
	}
	if f.rec != nil {
		return false
	}
	it, ok := f.queue.peek()
	if !ok {
		return false
	}
	done := true
	switch it.kind {
	case itemUp:
		f.onUp(it)
	case itemDown:
		f.onDown(it)
	case itemLive:
		done = f.onLive(it)
	}
	if done {
		f.queue.drop()
		f.release(it)
	}
	return true
}

// release frees a batch's memory.
func (f *feed) release(it item) {
	if it.msg == nil {
		return
	}
	f.plane.queued.Add(-it.bytes())
	f.plane.putMessage(it.msg)
}

// discard empties the queue of a feed that has ended. Replays end with the feed's context and
// their replies go with the channel.
func (f *feed) discard() {
	for _, it := range f.queue.close() {
		f.release(it)
	}
	f.rec = nil
}

// onTick does what is due by the clock: forget, probe, retry.
func (f *feed) onTick(now time.Time) {
	if f.rec != nil && f.rec.delayed && !f.plane.delays(now) {
		f.begin()
	}
	forget := f.plane.config.ForgetAfter
	if !f.conn.up {
		if forget > 0 && f.pos.known && now.Sub(f.conn.downAt) > forget {
			f.noteProblem("forgotten: not reachable for %v", forget)
			f.reset("unreachable")
			f.pos = position{}
		}
		return
	}
	if f.compareDue(now) {
		f.prove(f.conn.live)
		return
	}
	if n, _ := f.queue.size(); n > 0 || f.rec != nil || !f.canReplay() || f.conn.probeAt.IsZero() || now.Before(f.conn.probeAt) {
		return
	}
	switch {
	case !f.pos.known:
		f.recover(whyFirst)
	case f.conn.doubtful, f.pos.partial && !f.pos.exact:
		f.recover(whyRebuild)
	default:
		f.recover(whyProbe)
	}
}

// nextProbe sets the time of the next look for lost events.
func (f *feed) nextProbe(after time.Duration) { f.probeAfter(time.Now(), after) }

// probeAfter is nextProbe with the time that it counts from.
func (f *feed) probeAfter(from time.Time, after time.Duration) {
	if f.plane.config.Probe <= 0 {
		f.conn.probeAt = time.Time{}
		return
	}
	f.conn.probeAt = from.Add(after/2 + rand.N(after)) // spread: feeds are added together
}
