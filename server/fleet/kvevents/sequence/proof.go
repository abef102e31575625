package sequence

import (
	"fmt"
	"time"
)

// A replay socket may belong to another engine than the event socket: two addresses exchanged in the settings are enough. Its
// batches have plausible numbers, so the first live batch of each connection is compared with the replay of the same number.

// ForeignReplay begins the text of Foreign.
const ForeignReplay = "the replay socket belongs to another engine"

const (
	// maxMisses is how many replays may begin behind the newest live batch.
	maxMisses = 3
	// maxUnseen is how many probes may find batches before the event socket has delivered any.
	maxUnseen = 2
)

// proof is how far the comparison of a connection has come.
type proof struct {
	stage proofStage
	again time.Time // when to compare again, after a proof that failed; zero: not
	// misses are comparisons whose replay began too late; unseen probes that found batches before any came live.
	misses, unseen int
}

type proofStage uint8

const (
	proofOpen   proofStage = iota // no live batch has come yet
	proofDone                     // a live batch and its replay are equal
	proofFailed                   // it is not, or gave no answer; compared again after a time
)

// restart begins again, for a new engine process.
func (p *proof) restart() { p.stage, p.misses, p.unseen = proofOpen, 0, 0 }

// fail ends a comparison without a proof. The next one is due after a time, if that is set.
func (p *proof) fail(now time.Time, after time.Duration) {
	p.stage, p.again = proofFailed, time.Time{}
	if after > 0 {
		p.again = now.Add(after)
	}
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

// comparison is the part of a recovery that compares one live batch with its replay.
type comparison struct {
	sample Mark
	first  uint64 // the number of the batch that came
	other  bool   // it names another process
	look   bool   // any batch is requested, because that one did not come
}

// compare takes the answer to prove.
func (r *recovery) compare(b *Mark) {
	r.first, r.other = b.Seq, b.differsFrom(r.sample.By)
	r.verified = !r.other && b.Seq == r.sample.Seq && b.Print == r.sample.Print
}

// canCompare reports whether the replay socket may hold a batch that a live batch can be compared with.
func (s *State) canCompare(now time.Time) bool {
	return s.socket.at != "" && s.link.proof.stage != proofDone && s.pos.ring != ringEmpty && !s.lives.tooFast(now)
}

// compareDue reports whether it is time to compare again. Events that come all the time do not delay it.
func (s *State) compareDue(now time.Time) bool {
	p := &s.link.proof
	return !s.replay.running && s.link.hasLive && p.stage == proofFailed && !p.again.IsZero() && !now.Before(p.again) && s.canCompare(now)
}

// unconfirmed reports whether what is known rests on replays that no live batch confirms.
func (s *State) unconfirmed() bool {
	switch {
	case s.socket.foreign != "":
		return true
	case s.link.proof.stage == proofDone || !s.pos.unchecked:
		return false
	}
	return s.link.hasLive || s.link.proof.unseen >= maxUnseen
}

// prove requests the replay of a live batch. Live batches wait until it ends.
func (t *step) prove(sample Mark) {
	t.replay = recovery{running: true, why: WhyProof, comparison: comparison{sample: sample}}
	t.ask(0)
}

// judge judges the answer to prove.
func (t *answerStep) judge() {
	r := &t.replay
	silent := !r.any && t.pos.ring != ringHolds
	switch {
	case r.verified:
		t.proven()
	case silent && r.from > 0:
		r.look = true
		t.ask(0) // does it hold anything at all?
	case silent:
		t.endProof()
		t.barren()
	case !r.any || r.look || r.other || r.first == r.sample.Seq:
		t.differs(fmt.Sprintf("the batch %d that was published is not in its replay", r.sample.Seq))
	default: // it begins later
		t.link.proof.misses++
		if t.link.proof.misses >= maxMisses {
			t.differs(fmt.Sprintf("its replay begins at batch %d, and %d is the newest that was published", r.first, r.sample.Seq))
			return
		}
		t.problem("the replay lacks batch %d", r.sample.Seq)
		t.endProof()
	}
}

// proven: both sockets belong to one engine.
func (t *answerStep) proven() {
	if t.socket.confirmed {
		t.effects = append(t.effects, Effect{Do: Cleared, Request: Request{At: t.socket.at}})
	}
	t.replay = recovery{}
	t.link.proof.stage, t.link.proof.misses = proofDone, 0
	t.pos.ring, t.pos.unchecked = ringHolds, false
	t.socket.foreign, t.socket.confirmed = "", false
	after := t.Probe
	if t.pos.partial && !t.pos.exact {
		after = settle // which reads all again
	}
	t.nextProbe(after)
}

// endProof ends a comparison without a proof.
func (t *answerStep) endProof() {
	t.replay = recovery{}
	t.link.proof.fail(t.now, t.Probe)
	t.nextProbe(t.Probe)
}

// differs handles a replay that lacks the sample: the socket belongs to another engine, or this one has just restarted. Either way
// the replays are worth nothing. A second difference on the same connection shows that it is no restart.
func (t *answerStep) differs(why string) {
	t.endProof()
	switch s := &t.socket; {
	case s.foreign == "":
		s.foreign = fmt.Sprintf("%s than the event socket: %s is set, and %s", ForeignReplay, s.at, why)
		t.link.proof.again = t.now.Add(settle)
		t.dropReplays()
	case s.confirmed || t.event.Ending:
	default:
		s.confirmed = true
		t.effects = append(t.effects, Effect{Do: Foreign, Text: why, Request: Request{At: s.at}})
	}
}

// dropReplays forgets the batches from the replay socket of another engine. Live batches alone are followed from now on.
func (t *answerStep) dropReplays() {
	t.problem("%s", t.socket.foreign)
	if t.pos.unchecked {
		t.reset(FromForeign)
		t.pos = position{}
	}
	t.pos.partial = true // the right socket brings more
	t.gap = gap{}
}

// unseen notes batches that a probe found although the event socket has never delivered one.
func (t *answerStep) unseen() {
	if t.link.hasLive || t.link.proof.stage != proofOpen {
		return
	}
	t.link.proof.unseen++
	if t.link.proof.unseen >= maxUnseen {
		t.problem("the replay socket %s holds new batches and the event socket delivers none: do both belong to one engine, and does the topic match?", t.socket.at)
	}
}
