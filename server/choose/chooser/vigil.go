package chooser

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Vitals is what others know of whether a rank's engine lives and works.
type Vitals struct {
	// Counted is when the engine's own counters were read last; zero: they are not. Count grows with every
	// token that it computes, KVUsage is the share of KV blocks in use.
	Counted time.Time
	Count   uint64
	KVUsage float64
	// Requests are those that the engine says it has.
	Requests int
	// Asked is when the health question was sent that has no answer yet (zero: there is none), Late by how much its
	// answer is later than usual, Answered when the last one came.
	Asked    time.Time
	Late     time.Duration
	Answered time.Time
	// Unhealthy says that the replica is called so.
	Unhealthy bool
}

// Evidence is why a rank is held for stalled.
type Evidence uint8

// The kinds of evidence.
const (
	EvidenceNone Evidence = iota
	// EvidenceProbe: its replica does not answer its health question either, and others do.
	EvidenceProbe
	// EvidenceCounters: with requests there, the engine's own counters stand still.
	EvidenceCounters
	// EvidenceSilence: nothing comes back for far longer than ever, and than predicted.
	EvidenceSilence
	evidences
)

// String gives the evidence in the form that metrics and logs use.
func (e Evidence) String() string {
	return [evidences]string{"none", "probe", "counters", "silence"}[min(e, evidences-1)]
}

const (
	// vigilPeriod is the time between looks at the ranks.
	vigilPeriod = 100 * time.Millisecond
	// lateAfter is how late the answer to a health question must be to count.
	lateAfter = 700 * time.Millisecond
	// promptly is how recent the answer of another replica must be, to show that this machine hears answers.
	promptly = 1500 * time.Millisecond
	// blindFactor is how much more silence is borne where the engine's counters are not read.
	blindFactor = 5
	// gapFactor is how much longer than the rank's longest honest silence another may be.
	gapFactor = 2
	// slackKnown and slackUnknown are how many times longer than predicted a prefill may take, once the rank's
	// speed was learned and before.
	slackKnown   = 4
	slackUnknown = 40
	// gapMemory is how long it takes to forget a long silence by about two thirds.
	gapMemory = 5 * time.Minute
	// moveAfter is how long after the verdict requests without a byte are moved, at least.
	moveAfter = 400 * time.Millisecond
	// firstPause and lastPause bound the time until a stalled rank is tried again with one request.
	firstPause = 5 * time.Second
	lastPause  = time.Minute
	// unlimited is the answer to reckon with where no limit is known, in tokens.
	unlimited = 4096
	// sameTick is how much later than it came a sign of life may be noticed.
	sameTick = 3 * vigilPeriod
)

// vigil is what the chooser sees of a rank at work: its requests in flight and the signs of life that it shows.
type vigil struct {
	// heard is set by every sign of life and taken by the next look.
	heard atomic.Bool
	// evidence is the verdict, of which requests ask; until is when a stalled rank without requests may be tried again,
	// on the chooser's scale; flying counts the requests there.
	evidence atomic.Uint32
	until    atomic.Int64
	flying   atomic.Int64
	silent   atomic.Int64 // for how long, in nanoseconds, when it is stalled

	mu    sync.Mutex
	first *Choice // in flight here, the newest first; guarded by mu
	// lent are the bookings of external callers that nothing was heard of; guarded by mu
	lent map[*Choice]struct{}

	// What follows belongs to the goroutine that looks.
	known, moved bool // counters were read; and were seen to grow
	count        uint64
	usage        float64
	heardAt      time.Time
	silence, gap time.Duration // since the last sign, with requests there; the longest lately that ended with one
	over, sick   time.Duration // since the verdict; unhealthy and silent
	pause        time.Duration
}

// sign notes a sign of life. It costs one read most of the time.
func (w *vigil) sign() {
	if !w.heard.Load() {
		w.heard.Store(true)
	}
}

// avoided reports whether requests should go elsewhere: one may try a rank that has none, after a pause.
func (w *vigil) avoided(now int64) bool {
	switch Evidence(w.evidence.Load()) {
	case EvidenceNone:
		return false
	case EvidenceProbe: // the next probe tells
		return true
	default:
		return w.flying.Load() > 0 || now < w.until.Load()
	}
}

// enter and leave keep the list of requests in flight.
func (w *vigil) enter(c *Choice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.nextFlying = w.first; w.first != nil {
		w.first.prevFlying = c
	}
	w.first = c
	w.flying.Add(1)
}

func (w *vigil) leave(c *Choice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.prevFlying != nil {
		c.prevFlying.nextFlying = c.nextFlying
	} else {
		w.first = c.nextFlying
	}
	if c.nextFlying != nil {
		c.nextFlying.prevFlying = c.prevFlying
	}
	c.prevFlying, c.nextFlying = nil, nil
	w.flying.Add(-1)
}

// expected is the longest that the next sign of life may honestly take, in seconds: the longest prefill that is
// not over, and, where nobody sees tokens come, the longest answer too.
func (w *vigil) expected(blind bool) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := 0.0
	for c := w.first; c != nil; c = c.nextFlying {
		seconds := c.prefills
		if c.prefilled.Load() {
			seconds = 0
		}
		if blind && !c.streamed {
			seconds += c.decodes
		}
		longest = max(longest, seconds)
	}
	return longest
}

// listen takes in the signs since the last look and reports whether there was one.
func (w *vigil) listen(v *Vitals, now time.Time) bool {
	heard := w.heard.Swap(false)
	if !v.Counted.IsZero() {
		if w.known && (v.Count > w.count || v.Count == w.count && v.KVUsage > w.usage) {
			heard, w.moved = true, true
		}
		w.known, w.count, w.usage = true, v.Count, v.KVUsage
	}
	if heard {
		w.heardAt = now
	}
	return heard
}

// look judges the rank anew, passed after the last look. elsewhere is when another replica last answered its health question.
func (w *vigil) look(v *Vitals, now time.Time, passed time.Duration, after time.Duration, slack float64, elsewhere time.Time) Evidence {
	w.gap = time.Duration(float64(w.gap) * math.Exp(-float64(passed)/float64(gapMemory)))
	heard := w.listen(v, now)
	before := Evidence(w.evidence.Load())
	busy := w.flying.Load() > 0
	w.sick += passed
	if heard || !v.Unhealthy {
		w.sick = 0
	}
	switch {
	case heard:
		w.gap = max(w.gap, min(w.silence, w.allowed(v, after, slack, now)*3/2))
		w.silence, w.over, w.pause = 0, 0, 0
		return EvidenceNone
	case busy:
		w.silence += passed
	default:
		w.silence = 0
		if before != EvidenceProbe {
			w.over = 0
		}
	}
	switch {
	case !v.Asked.IsZero() && v.Late >= lateAfter && w.heardAt.Before(v.Asked.Add(sameTick)) && (elsewhere.After(v.Asked) || now.Sub(elsewhere) < promptly):
		w.over += passed
		return EvidenceProbe
	case before == EvidenceProbe: // it answers again, or nobody does
		w.over = 0
		before = EvidenceNone
	}
	switch {
	case !busy:
		return before // a trial will tell
	case w.silence < w.allowed(v, after, slack, now):
		if before == EvidenceNone {
			w.over = 0
		}
		return before
	}
	w.over += passed
	if w.counts(v, now) {
		return EvidenceCounters
	}
	return EvidenceSilence
}

// counts reports whether the engine's counters were read since the silence began, and can be believed to move.
func (w *vigil) counts(v *Vitals, now time.Time) bool {
	return w.moved && !v.Counted.IsZero() && now.Sub(v.Counted) < max(w.silence/2, time.Second)
}

// allowed is how long the rank may be silent.
func (w *vigil) allowed(v *Vitals, after time.Duration, slack float64, now time.Time) time.Duration {
	blind := !w.counts(v, now)
	if blind {
		after *= blindFactor
	}
	return max(after, gapFactor*w.gap, duration(min(slack*w.expected(blind), time.Hour.Seconds())))
}

// movable lists the requests that should leave the rank: those without a byte once it has been silent for as long after the
// verdict as moving them costs, and, when all, every one.
func (w *vigil) movable(all bool) []*Choice {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*Choice
	for c := w.first; c != nil; c = c.nextFlying {
		if c.abandon != nil && (all || c.movable && w.over >= max(moveAfter, duration(c.prefills/2))) {
			list = append(list, c)
		}
	}
	return list
}

// Heard tells that a rank showed a sign of life: its event feed did, say.
func (c *Chooser) Heard(slot replica.Slot) {
	if r := c.rank(slot); r != nil {
		r.vigil.sign()
	}
}
