package kvevents

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

const (
	turnItems = 256                  // batches in one turn, so that a busy feed does not starve others
	turnTime  = 2 * time.Millisecond // the same, in time
)

// feed reads the sockets of one rank. Arriving messages go into its inbox; only the worker that has the turn
// takes them out and passes them to the follower.
type feed struct {
	plane   *Plane
	events  replica.Events
	inbox   inbox
	journal journal

	epochs    atomic.Uint64 // numbers connections
	scheduled atomic.Bool   // in Plane.runnable, or having its turn
	started   atomic.Bool   // cancel and spawn are set
	closed    atomic.Bool
	cancel    context.CancelFunc
	spawn     func(func(context.Context)) // starts a goroutine that ends with the feed

	turn     sync.Mutex        // held by the worker that runs the feed
	follower follower          // guarded by turn
	held     *sequence.Request // guarded by turn; the first replay, while it has to wait
}

func newFeed(p *Plane, slot replica.Slot, events replica.Events, label string) *feed {
	f := &feed{plane: p, events: events, inbox: newInbox()}
	f.journal.log, f.journal.label, f.journal.endpoint = p.log, label, events.Endpoint
	followed, now := events.Endpoint != "", time.Now()
	f.journal.status = Status{Slot: slot, Label: label, Sockets: Sockets{Endpoint: events.Endpoint, Replay: events.Replay}}
	if followed {
		f.journal.status.State = kvblock.FeedCold
	}
	doubts, canDoubt := p.sink.(doubter)
	f.follower = follower{
		machine: sequence.Machine{Followed: followed, CanDoubt: canDoubt, Probe: p.config.Probe, ForgetAfter: p.config.ForgetAfter},
		state:   sequence.New(now, followed, rand.Uint64()),
		slot:    slot, sink: p.sink, doubts: doubts,
		journal: &f.journal, metrics: p.metrics, replayer: f,
	}
	return f
}

// inherit copies the state of old, so that the same engine continues behind new sockets. old has ended.
func (f *feed) inherit(old *feed) {
	f.follower.state, f.follower.problem = old.follower.state.Moved(time.Now()), old.follower.problem
	s := old.report()
	s.Label, s.Endpoint, s.Replay = f.journal.label, f.events.Endpoint, f.events.Replay
	f.journal.status = s
}

func (f *feed) report() Status {
	s := f.journal.report()
	s.Queued, s.QueuedBytes = f.inbox.queue.size()
	return s
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
		f.run(d)
	}
	f.turn.Unlock()
	f.scheduled.Store(false)
	if f.inbox.hasWork() {
		f.schedule()
	}
}

// run handles the inbox, for at most one turn.
func (f *feed) run(d *vllm.Decoder) {
	now := time.Now()
	if began := f.inbox.restarted.Swap(0); began != 0 {
		f.follower.begin(sequence.Restarted, now, time.Unix(0, began))
		f.follower.handle()
	}
	if f.inbox.malformedDue.Swap(false) {
		f.follower.begin(sequence.Malformed, now, now)
		f.follower.handle()
	}
	if f.inbox.tickDue.Swap(false) {
		f.replayHeld()
		n, _ := f.inbox.queue.size()
		f.follower.begin(sequence.Tick, now, now).Queued = n > 0
		f.follower.handle()
	}
	started := now
	for n := 0; n < turnItems; n++ {
		if n%16 == 15 {
			if now = time.Now(); now.Sub(started) > turnTime {
				break
			}
		}
		if !f.next(d, now) {
			break
		}
	}
	f.endTurn()
}

// endTurn publishes the state of the feed.
func (f *feed) endTurn() {
	f.inbox.waiting.Store(f.follower.state.Waiting())
	f.follower.endTurn()
}

// next handles one reply or item and reports whether there was one.
func (f *feed) next(d *vllm.Decoder, now time.Time) bool {
	select {
	case r := <-f.inbox.replies:
		f.onReply(d, r)
		return true
	default:
	}
	if f.follower.state.Waiting() {
		return false
	}
	it, ok := f.inbox.queue.peek()
	if !ok {
		return false
	}
	keep := false
	switch it.kind {
	case itemUp:
		e := f.follower.begin(sequence.Connected, now, it.at)
		e.Epoch, e.Link = it.epoch, sequence.Link{Replay: it.made.sockets.Replay, Instance: it.made.instance}
		f.journal.connected(it.made.sockets)
		f.plane.metrics.Connects.Add(background, 1)
		f.follower.handle()
	case itemDown:
		e := f.follower.begin(sequence.Disconnected, now, it.at)
		e.Epoch, e.Err = it.epoch, it.err
		f.follower.handle()
	case itemLive:
		f.follower.begin(sequence.Live, now, it.at).Epoch = it.epoch
		keep = f.follower.handleBatch(d, numbered{it.seq, it.by}, it.payload())
	}
	if !keep {
		f.inbox.queue.drop()
		f.release(it)
	}
	return true
}

// onReply handles one message of a replay, or its end.
func (f *feed) onReply(d *vllm.Decoder, r reply) {
	defer f.plane.putMessage(r.msg)
	now := time.Now()
	switch {
	case !f.follower.state.Awaits(r.job):
	case r.end:
		e := f.follower.begin(sequence.ReplayEnded, now, now)
		e.Job, e.Err, e.Ending = r.job, r.err, f.inbox.queue.ended(f.follower.state.Epoch())
		f.follower.handle()
	default:
		f.follower.begin(sequence.Replayed, now, now).Job = r.job
		f.follower.handleBatch(d, numbered{r.seq, r.by}, r.payload())
	}
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
	for _, it := range f.inbox.queue.close() {
		f.release(it)
	}
}
