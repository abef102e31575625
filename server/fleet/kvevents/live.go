package kvevents

import (
	"time"

	"github.com/zeebo/xxh3"
)

// gap is the last gap that a replay was asked to fill, so that the same one is not asked for again.
type gap struct {
	tried     bool
	seq, next uint64
}

// onUp: a connection was made. Whatever happened while there was none shows in a replay.
func (f *feed) onUp(it item) {
	f.conn = connection{up: true, epoch: it.epoch, heard: it.at}
	f.conn.trusted = !f.pos.known
	if !f.pos.known {
		f.lives.latest = it.at
	}
	f.replaySocket.move(it.made.sockets.Replay)
	f.count(func(s *Status) {
		s.Connects++
		s.Endpoint, s.Replay = it.made.sockets.Endpoint, it.made.sockets.Replay
	})
	f.plane.metrics.connects.Add(background, 1)
	f.nextProbe(f.plane.config.Probe)
	named := it.made.instance != "" && f.instance != ""
	same := named && it.made.instance == f.instance
	f.instance = it.made.instance
	switch {
	case !f.pos.known:
	case same:
		f.conn.trusted = true
	case named:
		f.newLife("the engine reports a new identity")
		return
	}
	f.conn.doubtful = f.pos.known && f.pos.barren && !same
	f.pos.barren = f.pos.barren && !f.conn.doubtful
	switch {
	case !f.canReplay():
	case f.conn.doubtful:
		f.recover(whyRebuild)
	case f.pos.known:
		f.recover(whyResume)
	default:
		f.recover(whyFirst)
	}
}

// onDown: the connection ended. What is known stays, marked as doubtful.
func (f *feed) onDown(it item) {
	if it.epoch != f.conn.epoch || !f.conn.up {
		return // an older connection, replaced by now
	}
	f.conn.up = false
	f.conn.downAt = it.at
	f.replaySocket.disconnected()
	f.noteProblem("disconnected: %v", it.err)
}

// onLive handles a batch and reports whether it is done; otherwise it waits for a replay.
func (f *feed) onLive(it item) (done bool) {
	if it.epoch != f.conn.epoch {
		return true
	}
	if f.conn.proof == proofOpen && f.canCompare() {
		f.prove(sampleOf(it))
		return false
	}
	if f.otherPublisher(it.by) {
		return f.rec == nil && f.onLive(it)
	}
	if f.conn.hasLive && it.seq <= f.conn.live.seq {
		if it.seq+1 == f.pos.next && f.samePrint(it.payload()) {
			return true // delivered twice
		}
		f.newLife("the numbering went back from %d to %d", f.conn.live.seq, it.seq)
		return f.rec == nil && f.onLive(it)
	}
	switch {
	case !f.pos.known:
		if it.seq != 0 && f.canReplay() && !f.tried(it.seq) {
			f.gap = gap{tried: true, seq: it.seq, next: f.pos.next}
			f.recover(whyFirst)
			return false
		}
		f.base(it.seq)
	case it.seq < f.pos.next:
		if !f.conn.trusted {
			f.newLife("the numbering went back from %d to %d", f.pos.next-1, it.seq)
			return f.rec == nil && f.onLive(it)
		}
		f.sawLive(it) // a replay was ahead of it
		return true
	case it.seq > f.pos.next:
		if !f.fillGap(it.seq) {
			return false
		}
		f.base(it.seq)
	}
	if !f.apply(it.seq, it.payload(), it.at, false) {
		return f.unreadable(it)
	}
	f.sawLive(it)
	return true
}

// otherPublisher notes the publisher of the current batch, and begins a new life when it is another
// process than before.
func (f *feed) otherPublisher(by publisher) bool {
	switch {
	case by == publisher{}:
		return false
	case f.pos.by == by:
		f.conn.trusted, f.conn.doubtful = true, false
		return false
	case f.pos.by == publisher{}:
		f.pos.by = by
		return false
	}
	f.newLife("another process publishes: %x instead of %x", by, f.pos.by)
	return true
}

func (f *feed) sawLive(it item) {
	f.conn.live = sample{seq: it.seq, print: f.pos.print, by: it.by}
	if f.pos.next != it.seq+1 || !f.pos.hasPrint {
		f.conn.live.print = xxh3.Hash(it.payload())
	}
	f.conn.hasLive, f.conn.trusted, f.conn.doubtful, f.conn.heard = true, true, false, it.at
	f.probeAfter(it.at, f.plane.config.Probe)
}

// fillGap requests a replay of what is missing before seq and returns false while it runs. It
// returns true after everything known was forgotten, because no replay can fill the gap.
func (f *feed) fillGap(seq uint64) (lost bool) {
	if !f.tried(seq) {
		f.count(func(s *Status) { s.Gaps++ })
		f.plane.metrics.gaps.Add(background, 1)
		if f.canReplay() {
			f.gap = gap{tried: true, seq: seq, next: f.pos.next}
			f.recover(whyGap)
			return false
		}
	}
	f.noteProblem("batches %d to %d are lost", f.pos.next, seq-1)
	f.doubt("gap")
	return true
}

// tried reports whether a replay was requested to reach seq and ended where the feed is now.
func (f *feed) tried(seq uint64) bool {
	return f.gap.tried && f.gap.seq == seq && f.gap.next == f.pos.next
}

// unreadable handles a live batch that could not be decoded. It counts as lost; the ring of the
// engine may hold it in a better shape.
func (f *feed) unreadable(it item) (done bool) {
	f.sawLive(it)
	if f.canReplay() && time.Since(f.rereadAt) > rereadEvery {
		f.rereadAt = time.Now()
		f.recover(whyGap)
		return true
	}
	f.damaged(it.seq, it.payload())
	return true
}

// base starts a stretch of the numbering at seq with nothing known before it.
func (f *feed) base(seq uint64) {
	f.pos.known, f.pos.next, f.pos.hasPrint = true, seq, false
	f.pos.exact = seq == 0
	f.gap = gap{}
}

// newLife: the engine process is a new one; all that was known about the old one is void.
func (f *feed) newLife(format string, args ...any) {
	f.noteProblem(format, args...)
	f.reset("restart")
	f.count(func(s *Status) { s.Restarts++ })
	f.pos = position{}
	f.gap = gap{}
	f.rec = nil
	f.lives.begin(time.Now())
	f.conn.hasLive, f.conn.trusted, f.conn.doubtful = false, true, false
	f.conn.proof, f.conn.misses, f.conn.unseen = proofOpen, 0, 0
	if f.canReplay() && f.conn.up {
		f.recover(whyFirst)
	}
}

// canReplay reports whether asking for a replay makes sense. It does not while engine lives follow each
// other too fast: then two engines share these sockets, and replays would be read forever.
func (f *feed) canReplay() bool {
	return f.replaySocket.at != "" && f.replaySocket.foreign == "" && !f.pos.barren && !f.lives.tooFast(time.Now())
}

// lives distinguishes restarts from two engines that publish under one numbering.
type lives struct {
	since  time.Time // when the period began
	count  int       // in the period
	latest time.Time // when the present life was first seen
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

func (f *feed) samePrint(payload []byte) bool {
	return f.pos.hasPrint && f.pos.print == xxh3.Hash(payload)
}
