package sequence

import (
	"math/bits"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// State is the knowledge about one feed. It is a value: a copy is independent.
type State struct {
	pos    position
	link   link
	replay recovery
	gap    gap
	lives  lives
	socket replaySocket
	// instance is the name of the engine process, if it has one.
	instance string
	jobs     uint64 // numbers requests
	// rereadAt is when a replay was last requested for a batch that could not be read.
	rereadAt time.Time
	shown    shown
	dice     uint64 // spreads probes
}

// position is how far the feed has come in the numbering of one engine process, and the sink's part of it.
type position struct {
	mark
	holdings
	source
	ring ring
	by   Publisher // zero: the engine does not name it
}

// mark is a place in the numbering.
type mark struct {
	known    bool   // next is meaningful
	next     uint64 // the batch expected next
	print    uint64 // of batch next-1, to recognise the engine process
	hasPrint bool
}

// advance makes b the last batch.
func (m *mark) advance(b *Mark) {
	*m = mark{known: true, next: b.Seq + 1, print: b.Print, hasPrint: true}
}

// isLast reports whether print is the last batch's.
func (m *mark) isLast(print uint64) bool { return m.hasPrint && m.print == print }

// holdings is the state of the sink's blocks.
type holdings struct {
	exact   bool // everything since the engine's start was applied
	lower   bool // the engine has published events of tiers below the GPU
	dirty   bool // the sink may hold something
	partial bool // a replay failed that could have brought more; it is worth another attempt
}

// source is where the holdings come from.
type source struct {
	unproven  bool // another feed gave them, and no event has confirmed them yet
	unchecked bool // they rest on replays of a socket that was not compared with the live feed since
}

// ring is the knowledge about the engine's past batches from replays.
type ring uint8

const (
	ringOpen  ring = iota
	ringHolds      // replays hold something
	ringEmpty      // replays hold nothing although batches were published
)

// link is the state of the event socket.
type link struct {
	up       bool
	epoch    uint64
	downAt   time.Time
	live     Mark // the newest batch on this connection
	hasLive  bool
	identity identity
	probeAt  time.Time // when to look for lost events
	proof    proof     // whether the replay socket belongs to the same engine
}

// identity is whether the engine behind a connection is the known one.
type identity uint8

const (
	identityOpen identity = iota
	identitySame          // it was shown to be, or none was known
	// identityHidden: replays of the known engine held nothing, so that no replay can show it. It ends with the first batch.
	identityHidden
)

// gap is the last gap that a replay was requested to fill, so that the same one is not requested again.
type gap struct {
	tried     bool
	seq, next uint64
}

// shown is the feed's state as it was last reported.
type shown struct {
	any   bool
	state kvblock.FeedState
}

// New returns the state of a feed without a connection. followed reports whether the rank has a feed; seed spreads the times of
// probes.
func New(now time.Time, followed bool, seed uint64) State {
	s := State{dice: seed}
	s.link.downAt = now
	s.pos.dirty = followed // the sink may have brought something from an earlier run
	return s
}

// Moved returns the state of a feed that continues behind new sockets.
func (s *State) Moved(now time.Time) State {
	return State{pos: s.pos, lives: s.lives, socket: s.socket, instance: s.instance, shown: s.shown, dice: s.dice, link: link{downAt: now}}
}

// Waiting reports whether live batches wait for the end of a replay.
func (s *State) Waiting() bool { return s.replay.running }

// Awaits reports whether answers to a request are of use.
func (s *State) Awaits(job uint64) bool { return s.replay.running && s.replay.job == job }

// Connected reports whether the event socket is connected.
func (s *State) Connected() bool { return s.link.up }

// Epoch is the present connection, or the last one.
func (s *State) Epoch() uint64 { return s.link.epoch }

// Next is the number of the batch expected next; known is false when nothing is known.
func (s *State) Next() (next uint64, known bool) { return s.pos.next, s.pos.known }

// Foreign is why the replay socket belongs to another engine; empty while nothing shows that.
func (s *State) Foreign() string { return s.socket.foreign }

// Feed is the feed's state as it was last reported.
func (s *State) Feed() kvblock.FeedState { return s.shown.state }

// feed is the feed's state now.
func (s *State) feed() kvblock.FeedState {
	r := &s.replay
	switch {
	case !s.pos.known, r.running && r.why == WhyFirst:
		return kvblock.FeedCold
	case !s.link.up || s.link.identity != identitySame || !s.pos.exact:
		return kvblock.FeedDegraded
	case r.running && r.why == WhyProof:
		if s.shown.state != kvblock.FeedExact || s.socket.foreign != "" {
			return kvblock.FeedDegraded // not exact before the comparison; a rank that is stays so for the moment that it takes
		}
	case s.unconfirmed(), r.running && r.why != WhyProbe:
		return kvblock.FeedDegraded
	}
	return kvblock.FeedExact
}

// canReplay reports whether a replay makes sense. It does not while engine processes follow each
// other too fast: then two engines share these sockets, and replays would be read forever.
func (s *State) canReplay(now time.Time) bool {
	return s.socket.at != "" && s.socket.foreign == "" && s.pos.ring != ringEmpty && !s.lives.tooFast(now)
}

// tried reports whether a replay was requested to reach seq and ended where the feed is now.
func (s *State) tried(seq uint64) bool {
	return s.gap.tried && s.gap.seq == seq && s.gap.next == s.pos.next
}

// base starts a stretch of the numbering at seq with nothing known before it.
func (s *State) base(seq uint64) {
	s.pos.known, s.pos.next, s.pos.hasPrint = true, seq, false
	s.pos.exact = seq == 0
	s.gap = gap{}
}

// roll returns a time from zero to below limit.
func (s *State) roll(limit time.Duration) time.Duration {
	s.dice = s.dice*6364136223846793005 + 1442695040888963407
	part, _ := bits.Mul64(s.dice, uint64(limit))
	return time.Duration(part)
}

// lives distinguishes restarts from two engines that publish under one numbering.
type lives struct {
	since  time.Time // when the period began
	count  int       // in the period
	latest time.Time // when the present process was first seen
}

const (
	livesPeriod = time.Minute
	livesMax    = 8 // in one period
)

func (l *lives) begin(now time.Time) {
	if now.Sub(l.since) > livesPeriod {
		l.since, l.count = now, 0
	}
	l.count++
	l.latest = now
}

func (l *lives) tooFast(now time.Time) bool {
	return l.count > livesMax && now.Sub(l.since) <= livesPeriod
}
