package sequence

import (
	"encoding/binary"
	"time"
)

const (
	positionFormat = 1
	positionFixed  = 2 + 8 + 8 + len(Publisher{})
)

// Position is a position that another feed has given.
type Position struct {
	position
	instance string
}

// Position encodes how far the feed is; nil when it is not sure of that.
func (s *State) Position() []byte {
	p, r := &s.pos, &s.replay
	switch {
	case !p.known, !s.link.up, s.link.identity != identitySame, p.unproven, !p.hasPrint && p.next > 0:
		return nil
	case r.running && r.why != WhyProbe && r.why != WhyGap:
		return nil
	}
	var flags byte
	for i, set := range [...]bool{p.hasPrint, p.exact, p.lower, p.partial, p.ring == ringEmpty, p.ring == ringHolds, p.unchecked} {
		if set {
			flags |= 1 << i
		}
	}
	b := []byte{positionFormat, flags}
	b = binary.LittleEndian.AppendUint64(b, p.next)
	b = binary.LittleEndian.AppendUint64(b, p.print)
	b = append(b, p.by[:]...)
	return append(b, s.instance...)
}

// ParsePosition decodes the result of Position.
func ParsePosition(b []byte) (at Position, ok bool) {
	if len(b) < positionFixed || b[0] != positionFormat {
		return at, false
	}
	set := func(bit int) bool { return b[1]&(1<<bit) != 0 }
	at.mark = mark{known: true, next: binary.LittleEndian.Uint64(b[2:]), print: binary.LittleEndian.Uint64(b[10:]), hasPrint: set(0)}
	at.holdings = holdings{exact: set(1), lower: set(2), partial: set(3)}
	switch {
	case set(4):
		at.ring = ringEmpty
	case set(5):
		at.ring = ringHolds
	}
	at.unchecked = set(6)
	copy(at.by[:], b[18:])
	at.instance = string(b[positionFixed:])
	return at, at.hasPrint || at.next == 0
}

// KnowsBetter reports whether the feed has no use for a position. Larger reports whether the position belongs to more than the sink
// holds.
func (s *State) KnowsBetter(now time.Time, at *Position, larger bool) bool {
	first := s.replay.running && s.replay.why == WhyFirst
	other := func(a, b string) bool { return a != "" && b != "" && a != b }
	switch {
	case other(s.instance, at.instance), s.pos.by != Publisher{} && at.by != Publisher{} && s.pos.by != at.by:
		return true
	case s.link.up && !s.canReplay(now) && s.link.hasLive && at.next <= s.link.live.Seq:
		return true // the batches that it has applied since cannot be had again
	case !s.pos.known:
		return false
	case s.pos.exact && (!s.replay.running || s.pos.next >= at.next):
		return true
	case at.exact, first:
		return false
	}
	return !larger
}

// continued sets the position and requests the batches that followed.
func (t *step) continued() {
	at := t.event.Position
	t.pos, t.instance = at.position, at.instance
	t.pos.dirty, t.pos.unproven = true, true
	t.gap, t.replay = gap{}, recovery{}
	if t.lives.latest.IsZero() {
		t.lives.latest = t.now
	}
	switch {
	case !t.link.up:
	case !t.canReplay(t.now):
		t.link.identity = identitySame // the other feed followed the engine until just now
	default:
		t.link.identity = identityOpen
		t.recover(WhyResume)
	}
}
