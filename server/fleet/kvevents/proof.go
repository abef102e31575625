package kvevents

import (
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
)

// A replay socket may belong to another engine than the event socket: two addresses exchanged in the settings are enough. Its
// batches have plausible numbers, so the first live batch of each connection is compared with the replay of the same number.

// ForeignReplay begins the Foreign of a Status.
const ForeignReplay = "the replay socket belongs to another engine"

// proof is how far the comparison of a connection has come.
type proof uint8

const (
	proofOpen   proof = iota // no live batch has come yet
	proofDone                // a live batch and its replay are equal
	proofFailed              // it is not, or gave no answer; compared again after a time
)

const (
	// maxMisses is how many replays may begin behind the newest live batch.
	maxMisses = 3
	// maxUnseen is how many probes may find batches before the event socket has delivered any.
	maxUnseen = 2
)

// sample is a live batch that the replay socket must hold.
type sample struct {
	seq, print uint64
	by         publisher
}

func sampleOf(it item) sample { return sample{it.seq, xxh3.Hash(it.payload()), it.by} }

// equals reports whether a replayed batch of the sample's number is the same.
func (s sample) equals(m reply) bool {
	named := s.by != publisher{} && m.by != publisher{}
	return (!named || s.by == m.by) && s.print == xxh3.Hash(m.payload())
}

// replaySocket is where replays are requested.
type replaySocket struct {
	at string // empty: there is none
	// foreign is why the socket belongs to another engine than the event socket; empty while nothing shows that. A second comparison
	// confirms it.
	foreign   string
	confirmed bool
}

// disconnected handles the end of the event socket's connection: without a second comparison, the engine has just restarted.
func (r *replaySocket) disconnected() {
	if !r.confirmed {
		r.foreign = ""
	}
}

// move sets the address. Another address is not suspected.
func (r *replaySocket) move(to string) {
	if r.at != to {
		*r = replaySocket{at: to}
	}
}

// canCompare reports whether the replay socket may hold what a live batch can be compared with.
func (f *feed) canCompare() bool {
	return f.replaySocket.at != "" && f.conn.proof != proofDone && !f.pos.barren && !f.lives.tooFast(time.Now())
}

// prove requests the replay of a live batch. Live batches wait until it ends.
func (f *feed) prove(s sample) {
	f.rec = &recovery{why: whyProof, comparison: comparison{sample: s}}
	f.begin()
}

// onSample takes the answer to prove; onProofEnd judges it.
func (f *feed) onSample(m reply) {
	r := f.rec
	r.any, r.verified = true, m.seq == r.sample.seq && r.sample.equals(m)
	r.first = m.seq
}

// onProofEnd judges the answer to prove.
func (f *feed) onProofEnd() {
	r := f.rec
	switch {
	case r.verified:
		f.proven()
	case !r.any && !f.pos.replayed && r.from > 0:
		r.look = true
		f.ask(0) // has it anything at all?
	case !r.any && !f.pos.replayed:
		f.endProof()
		f.barren()
	case !r.any || r.look || r.first == r.sample.seq:
		f.differs(fmt.Sprintf("the batch %d that was published is not in its replay", r.sample.seq))
	default: // it begins later
		f.conn.misses++
		if f.conn.misses >= maxMisses {
			f.differs(fmt.Sprintf("its replay begins at batch %d, and %d is the newest that was published", r.first, r.sample.seq))
			return
		}
		f.noteProblem("the replay lacks batch %d", r.sample.seq)
		f.endProof()
	}
}

// proven: both sockets belong to one engine.
func (f *feed) proven() {
	cleared := f.replaySocket.confirmed
	f.rec = nil
	f.conn.proof, f.conn.misses = proofDone, 0
	f.pos.replayed, f.pos.unchecked = true, false
	f.replaySocket.foreign, f.replaySocket.confirmed = "", false
	if cleared {
		f.plane.log.Info("the replay socket belongs to the engine that publishes now", "rank", f.label, "replay", f.replaySocket.at)
	}
	if f.pos.partial && !f.pos.exact {
		f.nextProbe(settle) // which reads all again
		return
	}
	f.nextProbe(f.plane.config.Probe)
}

// endProof ends a comparison without a proof.
func (f *feed) endProof() {
	f.rec = nil
	f.noProof()
	f.nextProbe(f.plane.config.Probe)
}

// noProof sets when to compare again.
func (f *feed) noProof() {
	f.conn.proof, f.conn.compareAt = proofFailed, time.Time{}
	if every := f.plane.config.Probe; every > 0 {
		f.conn.compareAt = time.Now().Add(every)
	}
}

// compareDue reports whether it is time to compare again. Events that come all the time do not delay it.
func (f *feed) compareDue(now time.Time) bool {
	at := f.conn.compareAt
	return f.rec == nil && f.conn.hasLive && f.conn.proof == proofFailed && !at.IsZero() && !now.Before(at) && f.canCompare()
}

// differs handles a replay that lacks the sample: the socket belongs to another engine, or this one has just restarted. Either way
// the replays are worth nothing. A second difference on the same connection shows that it is no restart.
func (f *feed) differs(why string) {
	f.endProof()
	switch s := &f.replaySocket; {
	case s.foreign == "":
		s.foreign = fmt.Sprintf("%s than the event socket: %s is set, and %s", ForeignReplay, s.at, why)
		f.conn.compareAt = time.Now().Add(settle)
		f.dropReplays()
	case s.confirmed || f.queue.ended(f.conn.epoch):
	default:
		s.confirmed = true
		f.plane.metrics.foreign.Add(background, 1)
		f.plane.log.Warn(ForeignReplay+": set events.replay to the replay_endpoint of the engine that publishes at events.endpoint",
			"rank", f.label, "endpoint", f.events.Endpoint, "replay", s.at, "why", why)
	}
}

// dropReplays forgets what came from the replay socket of another engine. Live batches alone are followed from now on.
func (f *feed) dropReplays() {
	f.noteProblem("%s", f.replaySocket.foreign)
	if f.pos.unchecked {
		f.reset("foreign")
		f.pos = position{}
	}
	f.pos.partial = true // the right socket brings more
	f.gap = gap{}
}

// unproven reports whether what is known rests on replays that no live batch confirms.
func (f *feed) unproven() bool {
	switch {
	case f.replaySocket.foreign != "":
		return true
	case f.conn.proof == proofDone || !f.pos.unchecked:
		return false
	}
	return f.conn.hasLive || f.conn.unseen >= maxUnseen
}

// unseen notes batches that a probe found although the event socket has never delivered one.
func (f *feed) unseen() {
	if f.conn.hasLive || f.conn.proof != proofOpen {
		return
	}
	f.conn.unseen++
	if f.conn.unseen >= maxUnseen {
		f.noteProblem("the replay socket %s holds new batches and the event socket delivers none: do both belong to one engine, and does the topic match?", f.replaySocket.at)
	}
}
