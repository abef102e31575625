package kvevents

import (
	"encoding/binary"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// doubter is a Sink that may keep what it holds as a guess when lost events make it doubtful.
type doubter interface{ Doubt(slot replica.Slot) }

// Still calls f while no event of the slot is applied. position says how far the feed is in the engine's numbering, for
// Continue; nil when no other feed could continue there. f must be short: the slot's events wait.
func (p *Plane) Still(slot replica.Slot, f func(position []byte)) {
	p.mu.Lock()
	feed := p.feeds[slot]
	p.mu.Unlock()
	if feed == nil {
		f(nil)
		return
	}
	feed.turn.Lock()
	defer feed.turn.Unlock()
	f(feed.position())
}

// DelayFirstReplays has feeds of which nothing is known wait until the given time before they ask their engines for everything:
// a position may come that makes it needless. Their events wait too. An earlier time, or a zero one, shortens the wait.
func (p *Plane) DelayFirstReplays(until time.Time) {
	if until.IsZero() {
		p.delayed.Store(0)
		return
	}
	p.delayed.Store(until.UnixNano())
}

// delays reports whether first replays wait.
func (p *Plane) delays(now time.Time) bool { return now.UnixNano() < p.delayed.Load() }

// Continued is what became of a position.
type Continued uint8

const (
	// ContinuedNone: the slot has no feed.
	ContinuedNone Continued = iota
	// ContinuedHere: the feed knows as much itself, or a different engine process.
	ContinuedHere
	// ContinuedThere: the feed continues at the position.
	ContinuedThere
)

// Continue makes the feed of slot continue at a position that another feed of the same engine gave to Still, in this process or
// another. It then calls fill, which replaces what the sink holds by what belongs to the position. larger says that this is
// more than what the sink holds. The engine is asked for what followed; when it turns out to be another process, or no longer
// has that, the sink is reset as ever.
func (p *Plane) Continue(slot replica.Slot, position []byte, larger bool, fill func()) Continued {
	at, ok := parsePosition(position)
	p.mu.Lock()
	f := p.feeds[slot]
	p.mu.Unlock()
	if f == nil || f.events.Endpoint == "" {
		return ContinuedNone
	}
	f.turn.Lock()
	defer f.turn.Unlock()
	switch {
	case f.closed.Load():
		return ContinuedNone
	case !ok || f.knowsBetter(&at, larger):
		return ContinuedHere
	}
	fill()
	f.continueAt(&at)
	f.waiting.Store(f.rec != nil)
	f.publish()
	return ContinuedThere
}

// knowsBetter reports whether the feed has no use for a position.
func (f *feed) knowsBetter(at *remotePosition, larger bool) bool {
	other := func(a, b string) bool { return a != "" && b != "" && a != b }
	switch {
	case other(f.instance, at.instance), f.pos.by != publisher{} && at.by != publisher{} && f.pos.by != at.by:
		return true
	case f.conn.up && !f.canReplay() && f.conn.hasLive && at.next <= f.conn.live.seq:
		return true // what it has applied since cannot be had again
	case !f.pos.known:
		return false
	case f.pos.exact && (f.rec == nil || f.pos.next >= at.next):
		return true
	case at.exact, f.rec != nil && f.rec.why == whyFirst:
		return false
	}
	return !larger
}

// continueAt sets the position and asks the engine for what followed.
func (f *feed) continueAt(at *remotePosition) {
	f.pos = at.position
	f.pos.dirty, f.pos.unproven = true, true
	f.instance = at.instance
	f.gap, f.rec = gap{}, nil
	if f.lives.latest.IsZero() {
		f.lives.latest = time.Now()
	}
	f.plane.metrics.continued.Add(background, 1)
	if !f.conn.up {
		return
	}
	if !f.canReplay() {
		f.conn.trusted = true // the other feed followed the engine until just now
		return
	}
	f.conn.trusted, f.conn.doubtful = false, false
	f.recover(whyResume)
}

// doubt is reset for lost events: what another feed brought and no event has confirmed stays as a guess where the sink can
// keep it so.
func (f *feed) doubt(reason string) {
	d, able := f.plane.sink.(doubter)
	if !f.pos.unproven || !able {
		f.reset(reason)
		return
	}
	f.pos.exact, f.pos.unproven = false, false
	d.Doubt(f.slot)
}

// position encodes how far the feed is; nil when it is not sure of that.
func (f *feed) position() []byte {
	switch {
	case f.events.Endpoint == "", !f.pos.known, !f.conn.up, !f.conn.trusted, f.pos.unproven, !f.pos.hasPrint && f.pos.next > 0:
		return nil
	case f.rec != nil && f.rec.why != whyProbe && f.rec.why != whyGap:
		return nil
	}
	var flags byte
	for i, set := range f.pos.flags() {
		if *set {
			flags |= 1 << i
		}
	}
	b := []byte{positionFormat, flags}
	b = binary.LittleEndian.AppendUint64(b, f.pos.next)
	b = binary.LittleEndian.AppendUint64(b, f.pos.print)
	b = append(b, f.pos.by[:]...)
	return append(b, f.instance...)
}

const (
	positionFormat = 1
	positionFixed  = 2 + 8 + 8 + len(publisher{})
)

// flags are the marks of a position that are passed on, in the order of their bits.
func (p *position) flags() []*bool {
	return []*bool{&p.hasPrint, &p.exact, &p.lower, &p.partial, &p.barren, &p.replayed, &p.unchecked}
}

// remotePosition is a position that another feed has given.
type remotePosition struct {
	position
	instance string
}

func parsePosition(b []byte) (at remotePosition, ok bool) {
	if len(b) < positionFixed || b[0] != positionFormat {
		return at, false
	}
	at.known = true
	for i, set := range at.flags() {
		*set = b[1]&(1<<i) != 0
	}
	at.next, at.print = binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:])
	copy(at.by[:], b[18:])
	at.instance = string(b[positionFixed:])
	return at, at.hasPrint || at.next == 0
}
