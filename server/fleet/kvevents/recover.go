package kvevents

import (
	"errors"
	"time"
)

// why a replay is asked for.
type why uint8

const (
	whyFirst   why = iota // nothing is known: read all that the ring holds
	whyResume             // a new connection: is it the same engine, and what was missed?
	whyGap                // live batches are missing
	whyProbe              // the feed is quiet: was something lost?
	whyRebuild            // an earlier replay failed: read all again
	whyProof              // is the replay socket that of the engine that publishes?
)

// whyNames are the forms that metrics and logs use.
var whyNames = [...]string{"first", "resume", "gap", "probe", "rebuild", "proof"}

func (w why) String() string { return whyNames[w] }

const (
	maxAttempts = 64                     // requests in one recovery, when each makes some progress
	maxFailures = 3                      // consecutive requests that make none
	maxUseless  = 1 << 16                // replies without new batches, before the replay counts as failed
	settle      = 500 * time.Millisecond // after a recovery, to find what fell between replay and subscription
	rereadEvery = 30 * time.Second
)

// recovery is a replay in progress, over all its attempts.
type recovery struct {
	why      why
	job      uint64 // of the present attempt; replies to others are stale
	from     uint64 // asked for
	check    bool   // the reply must start with our last batch, to show that the engine is the same
	verified bool   // it did
	any      bool   // there was a reply in this attempt
	progress int    // batches applied in this attempt
	useless  int
	attempts int
	failures int
	delayed  bool // it has not begun: a position may come that makes it needless
	comparison
}

// comparison is the part of a recovery that compares one live batch with its replay.
type comparison struct {
	sample sample
	first  uint64 // the number of the batch that came
	look   bool   // any batch is asked for, because that one did not come
}

// recover begins a recovery. Live batches wait until it ends.
func (f *feed) recover(w why) {
	f.rec = &recovery{why: w}
	if w == whyFirst && f.plane.delays(time.Now()) {
		f.rec.delayed = true
		return
	}
	f.begin()
}

// begin asks for the replay of a recovery.
func (f *feed) begin() {
	w := f.rec.why
	f.rec.delayed = false
	f.count(func(s *Status) { s.Replays++ })
	f.plane.metrics.replay(w)
	f.ask(0)
}

// ask requests what is missing now.
func (f *feed) ask(delay time.Duration) {
	r := f.rec
	r.attempts++
	r.any, r.verified, r.progress = false, false, 0
	r.from, r.check = 0, false
	if f.pos.known && r.why != whyRebuild {
		r.from = f.pos.next
		if f.pos.hasPrint && f.pos.next > 0 {
			r.from, r.check = f.pos.next-1, true
		}
	}
	if r.why == whyProof {
		r.from, r.check = r.sample.seq, false
		if r.look {
			r.from = 0
		}
	}
	f.jobs++
	r.job = f.jobs
	f.replay(request{at: f.replaySocket.at, job: r.job, from: r.from, one: r.why == whyProof}, delay)
}

// onReply handles one message of a replay.
func (f *feed) onReply(m reply) {
	if f.rec == nil || m.job != f.rec.job {
		f.plane.putMessage(m.msg)
		return
	}
	if m.end {
		f.onReplayEnd(m.err)
		return
	}
	if f.rec.why == whyProof {
		f.onSample(m)
		f.plane.putMessage(m.msg)
		return
	}
	f.rec.any, f.conn.doubtful = true, false
	f.pos.replayed = true
	f.conn.heard = time.Now()
	f.onReplayed(m)
	f.plane.putMessage(m.msg)
}

func (f *feed) onReplayed(m reply) {
	if f.otherPublisher(m.by) {
		return
	}
	r, payload := f.rec, m.payload()
	if r.why == whyRebuild && r.progress == 0 {
		f.reset("rebuild")
		f.pos = position{replayed: true, lower: f.pos.lower, by: f.pos.by}
		r.why = whyFirst
	}
	switch {
	case r.check && !r.verified:
		f.verify(m)
	case !f.pos.known:
		f.base(m.seq)
		f.take(m.seq, payload)
	case m.seq < f.pos.next:
		f.uselessReply()
	case m.seq == f.pos.next:
		f.take(m.seq, payload)
	case r.progress > 0 && r.attempts < maxAttempts:
		f.ask(0) // a hole; the engine's socket drops replies that it cannot send at once
	default:
		f.hole(m)
	}
}

// verify looks at the first reply of a request that starts with our last batch.
func (f *feed) verify(m reply) {
	switch {
	case m.seq < f.rec.from:
		f.uselessReply()
	case m.seq > f.rec.from:
		f.rec.verified = true // the ring no longer holds our last batch
		f.conn.trusted = true
		if m.seq == f.pos.next {
			f.noteProblem("the replay lacks batch %d", f.rec.from)
			f.doubt("gap")
			f.base(m.seq)
			f.take(m.seq, m.payload())
			return
		}
		f.hole(m)
	case f.samePrint(m.payload()):
		f.rec.verified = true
		f.conn.trusted = true
		f.pos.unproven = false
	default:
		f.newLife("batch %d is not the one seen before: the engine is a new one", m.seq)
	}
}

// hole steps over batches that no replay holds.
func (f *feed) hole(m reply) {
	f.noteProblem("batches %d to %d are in no replay", f.pos.next, m.seq-1)
	f.doubt("gap")
	f.base(m.seq)
	f.take(m.seq, m.payload())
}

// take applies a replayed batch.
func (f *feed) take(seq uint64, payload []byte) {
	f.rec.progress++
	f.rec.failures = 0
	f.pos.unchecked = f.pos.unchecked || f.conn.proof != proofDone
	if !f.apply(seq, payload, time.Now(), true) {
		f.damaged(seq, payload)
	}
}

func (f *feed) uselessReply() {
	f.rec.useless++
	if f.rec.useless > maxUseless {
		f.onReplayEnd(errUseless)
	}
}

var errUseless = errors.New("the replay sent the same batches again")

// onReplayEnd: the end marker came, or the attempt failed.
func (f *feed) onReplayEnd(err error) {
	r := f.rec
	if err != nil {
		r.failures++
		f.noteProblem("replay (%s) from %d: %v", r.why, r.from, err)
		f.plane.metrics.replayFailed(r.why)
		if r.failures < maxFailures && r.attempts < maxAttempts && !errors.Is(err, errUseless) {
			f.ask(time.Duration(r.failures) * 100 * time.Millisecond)
			return
		}
		f.giveUp()
		return
	}
	if r.why == whyProof {
		f.onProofEnd()
		return
	}
	f.rec = nil
	f.nextProbe(settle)
	if f.conn.doubtful && !r.any {
		return // as open as before; retried until the engine answers
	}
	switch {
	case r.check && !r.verified:
		f.missing(r)
	case !f.pos.known:
		f.base(0) // the engine has published nothing yet
	case r.why == whyGap && !r.any && !f.pos.replayed:
		f.barren()
	}
	f.conn.trusted = true
	if r.why == whyProbe && r.progress == 0 {
		f.nextProbe(f.plane.config.Probe)
	}
	if r.why == whyProbe && r.progress > 0 {
		f.count(func(s *Status) { s.Gaps++ })
		f.plane.metrics.gaps.Add(background, 1)
		f.unseen()
	}
}

// missing: the replay ended without our last batch.
func (f *feed) missing(r *recovery) {
	if f.conn.hasLive && !f.pos.replayed {
		f.barren()
		return
	}
	f.newLife("the replay does not hold batch %d: the engine is a new one", r.from)
}

// barren: the engine has published on this connection and its replays are empty: a ring of no size.
func (f *feed) barren() {
	f.pos.barren = true
	f.noteProblem("replays of this engine are empty")
}

// giveUp ends a recovery that failed. Live batches continue from where they are.
func (f *feed) giveUp() {
	f.rec = nil
	if f.conn.proof != proofDone {
		f.noProof()
	}
	f.pos.partial = f.pos.partial || !f.pos.exact || !f.conn.trusted
	f.nextProbe(f.plane.config.Probe)
}
