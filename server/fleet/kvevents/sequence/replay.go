package sequence

import (
	"errors"
	"time"
)

// Why is why a replay is requested.
type Why uint8

// The reasons of replays.
const (
	WhyFirst   Why = iota // nothing is known: read all that the ring holds
	WhyResume             // a new connection: is it the same engine, and what was missed?
	WhyGap                // live batches are missing
	WhyProbe              // the feed is quiet: was something lost?
	WhyRebuild            // an earlier replay failed: read all again
	WhyProof              // does the replay socket belong to the engine that publishes?
)

// Whys lists the reasons.
func Whys() []Why { return []Why{WhyFirst, WhyResume, WhyGap, WhyProbe, WhyRebuild, WhyProof} }

// String is the form that metrics and logs use.
func (w Why) String() string {
	return [...]string{"first", "resume", "gap", "probe", "rebuild", "proof"}[w]
}

// MaxUseless is how many replies without new batches may come, before a replay counts as failed.
const MaxUseless = 1 << 16

// ErrUseless is the error of such a replay.
var ErrUseless = errors.New("the replay sent the same batches again")

const (
	maxAttempts = 64                     // requests in one recovery, when each makes some progress
	maxFailures = 3                      // consecutive requests that make none
	settle      = 500 * time.Millisecond // after a recovery, to find batches lost between replay and subscription
	rereadEvery = 30 * time.Second
)

// recovery is a replay in progress, over all its attempts.
type recovery struct {
	running  bool
	why      Why
	attempt  // the present one
	attempts int
	failures int
	useless  int
	comparison
}

// attempt is one request of a recovery.
type attempt struct {
	job      uint64 // replies to others are stale
	from     uint64
	check    bool // the reply must start with our last batch, to show that the engine is the same
	verified bool // it did
	any      bool // there was a reply
	progress int  // batches applied
}

// recover begins a recovery. Live batches wait until it ends.
func (t *step) recover(why Why) {
	t.replay = recovery{running: true, why: why}
	t.ask(0)
}

// ask requests the batches that are missing now.
func (t *step) ask(after time.Duration) {
	r := &t.replay
	t.jobs++
	r.attempts++
	r.attempt = attempt{job: t.jobs}
	switch {
	case r.why == WhyProof && !r.look:
		r.from = r.sample.Seq
	case r.why == WhyProof, r.why == WhyRebuild, !t.pos.known:
	case t.pos.hasPrint && t.pos.next > 0:
		r.from, r.check = t.pos.next-1, true
	default:
		r.from = t.pos.next
	}
	t.effects = append(t.effects, Effect{Do: Ask, Request: Request{
		At: t.socket.at, Job: r.job, From: r.from, One: r.why == WhyProof, Why: r.why, First: r.attempts == 1, After: after,
	}})
}

// answerStep is the step of an answer to a request.
type answerStep struct{ step }

// replayed handles one batch of a replay.
func (t *answerStep) replayed(b *Batch) {
	r := &t.replay
	r.any = true
	if r.why == WhyProof {
		r.compare(&b.Mark)
		return
	}
	if t.link.identity == identityHidden {
		t.link.identity = identityOpen
	}
	t.pos.ring = ringHolds
	if t.otherPublisher(b.By) {
		return
	}
	if r.why == WhyRebuild && r.progress == 0 {
		t.reset(Rebuilt)
		t.pos = position{ring: ringHolds, holdings: holdings{lower: t.pos.lower}, by: t.pos.by}
		r.why = WhyFirst
	}
	switch {
	case r.check && !r.verified:
		t.verify(b)
	case !t.pos.known:
		t.base(b.Seq)
		t.take(b)
	case b.Seq < t.pos.next:
		t.uselessReply()
	case b.Seq == t.pos.next:
		t.take(b)
	case r.progress > 0 && r.attempts < maxAttempts:
		t.ask(0) // a hole; the engine's socket drops replies that it cannot send at once
	default:
		t.hole(b)
	}
}

// verify judges the first reply of a request that starts with our last batch.
func (t *answerStep) verify(b *Batch) {
	r := &t.replay
	switch {
	case b.Seq < r.from:
		t.uselessReply()
	case b.Seq > r.from: // the ring no longer holds our last batch
		r.verified, t.link.identity = true, identitySame
		if b.Seq > t.pos.next {
			t.hole(b)
			return
		}
		t.problem("the replay lacks batch %d", r.from)
		t.restart(b)
	case t.pos.isLast(b.Print):
		r.verified, t.link.identity = true, identitySame
		t.pos.unproven = false
	default:
		t.newLife("batch %d is not the one seen before: the engine is a new one", b.Seq)
	}
}

// hole steps over batches that no replay holds.
func (t *answerStep) hole(b *Batch) {
	t.problem("batches %d to %d are in no replay", t.pos.next, b.Seq-1)
	t.restart(b)
}

// restart makes b the first known batch.
func (t *answerStep) restart(b *Batch) {
	t.doubt()
	t.base(b.Seq)
	t.take(b)
}

// take applies a replayed batch.
func (t *answerStep) take(b *Batch) {
	t.replay.progress++
	t.replay.failures = 0
	t.pos.unchecked = t.pos.unchecked || t.link.proof.stage != proofDone
	if !t.apply(b) {
		t.damaged(b)
	}
}

func (t *answerStep) uselessReply() {
	t.replay.useless++
	if t.replay.useless > MaxUseless {
		t.ended(ErrUseless)
	}
}

// ended: the end marker came, or the attempt failed.
func (t *answerStep) ended(err error) {
	switch {
	case err != nil:
		t.failed(err)
	case t.replay.why == WhyProof:
		t.judge()
	default:
		t.recovered(t.replay)
	}
}

// failed tries again or ends the recovery. Live batches continue from where they are.
func (t *answerStep) failed(err error) {
	r := &t.replay
	r.failures++
	t.problem("replay (%s) from %d: %v", r.why, r.from, err)
	t.effects = append(t.effects, Effect{Do: ReplayFailed, Request: Request{Why: r.why}})
	if r.failures < maxFailures && r.attempts < maxAttempts && !errors.Is(err, ErrUseless) {
		t.ask(time.Duration(r.failures) * 100 * time.Millisecond)
		return
	}
	t.replay = recovery{}
	if t.link.proof.stage != proofDone {
		t.link.proof.fail(t.now, t.Probe)
	}
	t.pos.partial = t.pos.partial || !t.pos.exact || t.link.identity != identitySame
	t.nextProbe(t.Probe)
}

// recovered ends a recovery whose end marker came.
func (t *answerStep) recovered(r recovery) {
	t.replay = recovery{}
	t.nextProbe(settle)
	if t.link.identity == identityHidden && !r.any {
		return // as open as before; retried until the engine answers
	}
	switch {
	case r.check && !r.verified && t.link.hasLive && t.pos.ring != ringHolds:
		t.barren()
	case r.check && !r.verified:
		t.newLife("the replay does not hold batch %d: the engine is a new one", r.from)
	case !t.pos.known:
		t.base(0) // the engine has published nothing yet
	case r.why == WhyGap && !r.any && t.pos.ring != ringHolds:
		t.barren()
	}
	t.link.identity = identitySame
	switch {
	case r.why != WhyProbe:
	case r.progress == 0:
		t.nextProbe(t.Probe)
	default:
		t.add(Gap)
		t.unseen()
	}
}

// barren: the engine has published on this connection and its replays are empty: a ring of no size.
func (t *step) barren() {
	t.pos.ring = ringEmpty
	t.problem("replays of this engine are empty")
}
