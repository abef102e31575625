package sequence

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Machine has the parameters of one feed's steps beyond its State.
type Machine struct {
	// Followed reports whether the rank has a feed.
	Followed bool
	// CanDoubt reports whether the sink executes Doubt.
	CanDoubt bool
	// Probe is how long a feed may be quiet before a replay from its last batch checks for lost events. Zero: no checks.
	Probe time.Duration
	// ForgetAfter is how long a rank's blocks are kept while its feed cannot be reached. Zero: without limit.
	ForgetAfter time.Duration
}

// step is one step in progress.
type step struct {
	*Machine
	*State
	effects
	event *Event
	now   time.Time
}

// Step moves s by one event and appends the effects to out.
func (m *Machine) Step(s *State, e *Event, out []Effect) []Effect {
	t := step{Machine: m, State: s, effects: out, event: e, now: e.Now}
	switch e.Kind {
	case Live:
		l := liveStep{t}
		l.live(&e.Batch)
		return l.effects
	case Replayed, ReplayEnded:
		if !s.Awaits(e.Job) {
			break
		}
		a := answerStep{t}
		if e.Kind == Replayed {
			a.replayed(&e.Batch)
		} else {
			a.ended(e.Err)
		}
		return a.effects
	case Connected:
		t.connected()
	case Disconnected:
		t.disconnected()
	case Tick:
		t.tick()
	case Restarted:
		if s.pos.known && s.lives.latest.Before(e.At) {
			t.newLife("the engine process is a new one")
		}
	case Malformed:
		s.pos.exact = false
	case Continued:
		t.continued()
	case Shown:
		t.show()
	}
	return t.effects
}

// connected: whatever happened while there was no connection shows in a replay.
func (t *step) connected() {
	e := t.event
	t.link = link{up: true, epoch: e.Epoch}
	if !t.pos.known {
		t.link.identity = identitySame
		t.lives.latest = e.At
	}
	t.socket.move(e.Link.Replay)
	t.nextProbe(t.Probe)
	named := e.Link.Instance != "" && t.instance != ""
	same := named && e.Link.Instance == t.instance
	t.instance = e.Link.Instance
	switch {
	case !t.pos.known:
	case same:
		t.link.identity = identitySame
	case named:
		t.newLife("the engine reports a new identity")
		return
	case t.pos.ring == ringEmpty:
		t.link.identity = identityHidden
		t.pos.ring = ringOpen
	}
	switch {
	case !t.canReplay(t.now):
	case t.link.identity == identityHidden:
		t.recover(WhyRebuild)
	case t.pos.known:
		t.recover(WhyResume)
	default:
		t.recover(WhyFirst)
	}
}

// disconnected: the blocks stay, marked as doubtful.
func (t *step) disconnected() {
	if t.event.Epoch != t.link.epoch || !t.link.up {
		return // an older connection, replaced by now
	}
	t.link.up, t.link.downAt = false, t.event.At
	t.socket.disconnected()
	t.problem("disconnected: %v", t.event.Err)
}

// tick does the work that is due by the clock: forget, compare, probe, retry.
func (t *step) tick() {
	if !t.link.up {
		if t.ForgetAfter > 0 && t.pos.known && t.now.Sub(t.link.downAt) > t.ForgetAfter {
			t.problem("forgotten: not reachable for %v", t.ForgetAfter)
			t.reset(Unreachable)
			t.pos = position{}
		}
		return
	}
	if t.compareDue(t.now) {
		t.prove(t.link.live)
		return
	}
	at := t.link.probeAt
	if t.event.Queued || t.replay.running || !t.canReplay(t.now) || at.IsZero() || t.now.Before(at) {
		return
	}
	switch {
	case !t.pos.known:
		t.recover(WhyFirst)
	case t.link.identity == identityHidden, t.pos.partial && !t.pos.exact:
		t.recover(WhyRebuild)
	default:
		t.recover(WhyProbe)
	}
}

// show reports a change of the feed's state.
func (t *step) show() {
	state := kvblock.FeedNone
	if t.Followed {
		state = t.feed()
	} else {
		t.reset(NoFeed)
		t.pos = position{}
	}
	if t.shown.any && t.shown.state == state {
		return
	}
	was := state
	if t.shown.any {
		was = t.shown.state
	}
	t.shown = shown{any: true, state: state}
	t.effects = append(t.effects, Effect{Do: Show, State: state, Was: was})
}

// newLife: the engine process is a new one; all that was known about the old one is void.
func (t *step) newLife(format string, args ...any) {
	t.problem(format, args...)
	t.reset(EngineRestarted)
	t.add(Restart)
	t.pos, t.gap, t.replay = position{}, gap{}, recovery{}
	t.lives.begin(t.now)
	t.link.hasLive, t.link.identity = false, identitySame
	t.link.proof.restart()
	if t.canReplay(t.now) && t.link.up {
		t.recover(WhyFirst)
	}
}

// reset makes the sink forget the rank, if there is anything to forget.
func (t *step) reset(reason Reason) {
	t.pos.exact = false
	if t.pos.dirty {
		t.pos.dirty = false
		t.effects = append(t.effects, Effect{Do: Reset, Reason: reason})
	}
}

// doubt is reset for lost events: blocks that another feed brought and no event has confirmed stay as a guess where the sink can keep
// them so.
func (t *step) doubt() {
	if !t.pos.unproven || !t.CanDoubt {
		t.reset(LostInGap)
		return
	}
	t.pos.exact, t.pos.unproven = false, false
	t.add(Doubt)
}

// otherPublisher notes the publisher of the current batch, and begins a new life when it is another
// process than before.
func (t *step) otherPublisher(by Publisher) bool {
	switch {
	case by == Publisher{}:
		return false
	case t.pos.by == by:
		t.link.identity = identitySame
		return false
	case t.pos.by == Publisher{}:
		t.pos.by = by
		return false
	}
	t.newLife("another process publishes: %x instead of %x", by, t.pos.by)
	return true
}

// apply passes a batch to the sink and advances. It reports false, and leaves the position, when the batch cannot be read.
func (t *step) apply(b *Batch) bool {
	if b.Err != nil {
		t.add(Unreadable)
		t.problem("batch %d: %v", b.Seq, b.Err)
		return false
	}
	t.add(Apply)
	if b.Emptied && !t.pos.lower {
		t.pos.exact, t.pos.partial = true, false // the present contents are known: nothing
	}
	t.pos.lower = t.pos.lower || b.Lower
	t.pos.dirty = t.pos.dirty || b.Stores
	if b.Misfits > 0 {
		t.pos.exact = false
		t.problem("batch %d: %d stores whose tokens do not match their hashes", b.Seq, b.Misfits)
	}
	t.pos.advance(&b.Mark)
	t.pos.unproven = false
	return true
}

// damaged steps over a batch that cannot be read. It may have held removals, so nothing that was
// known before it can be relied on.
func (t *step) damaged(b *Batch) {
	t.reset(BatchUnreadable)
	t.pos.advance(&b.Mark)
	t.pos.unproven = false
}

// nextProbe sets the time of the next look for lost events.
func (t *step) nextProbe(after time.Duration) { t.probeAfter(t.now, after) }

// probeAfter is nextProbe with the time that it counts from.
func (t *step) probeAfter(from time.Time, after time.Duration) {
	t.link.probeAt = time.Time{}
	if t.Probe > 0 {
		t.link.probeAt = from.Add(after/2 + t.roll(after)) // spread: feeds are added together
	}
}
