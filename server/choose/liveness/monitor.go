package liveness

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Period is the time between two rounds.
	Period = 100 * time.Millisecond
	// LateAfter is how late the answer to a health probe must be to count.
	LateAfter = 700 * time.Millisecond
	// recentAnswer is how recent the answer of another replica must be, to show that this machine receives answers.
	recentAnswer = 1500 * time.Millisecond
	// blindFactor is how much more silence is allowed where the engine's counters are not read.
	blindFactor = 5
	// gapFactor is how much longer a silence may be than the rank's longest harmless one.
	gapFactor = 2
	// slackKnown and slackUnknown are how many times longer than predicted a prefill may take, once the rank's
	// speed was learned and before.
	slackKnown   = 4
	slackUnknown = 40
	// gapMemory is the time after which about two thirds of a long silence is forgotten.
	gapMemory = 5 * time.Minute
	// moveAfter is the least time after the verdict at which requests without an answer are moved.
	moveAfter = 400 * time.Millisecond
	// resumeAfter is the same for streams that can be resumed: another replica computes all of their context.
	resumeAfter = 2 * time.Second
	// firstPause and lastPause bound the time until a stalled rank is tried again with one request.
	firstPause = 5 * time.Second
	lastPause  = time.Minute
	// noticeDelay bounds the time between progress and its notice.
	noticeDelay = 3 * Period
)

// Monitor follows one rank. Its zero value is ready.
type Monitor struct {
	// heard is set by all progress and reset by the next round.
	heard atomic.Bool
	// evidence is the verdict; until is when a stalled rank without requests may be tried again, in Unix nanoseconds.
	evidence atomic.Uint32
	until    atomic.Int64
	inFlight atomic.Int64
	silent   atomic.Int64 // for how long, in nanoseconds, when it is stalled
	tally    *atomic.Int64

	mu    sync.Mutex
	first *Request              // in flight, the newest first; guarded by mu
	lent  map[*Request]struct{} // not reported on yet; guarded by mu

	// The fields below belong to the goroutine that calls Look.
	known, moved bool // counters were read; and were seen to grow
	count        uint64
	usage        float64
	heardAt      time.Time
	silence, gap time.Duration // since the last progress, with requests there; the longest lately that ended with progress
	over, sick   time.Duration // since the verdict; unhealthy and silent
	pause        time.Duration
	unlooked     time.Duration // since Quiet looked
}

// Count has tally count the rank while it counts as stalled, until Forget. It is called once, before the first Look.
func (m *Monitor) Count(tally *atomic.Int64) { m.tally = tally }

// Forget ends the verdict of a rank that is gone.
func (m *Monitor) Forget() { m.rule(None) }

// rule sets the verdict.
func (m *Monitor) rule(now Evidence) {
	before := Evidence(m.evidence.Swap(uint32(now)))
	switch {
	case m.tally == nil, (before == None) == (now == None):
	case now == None:
		m.tally.Add(-1)
	default:
		m.tally.Add(1)
	}
}

// Sign notes progress. It costs one read most of the time.
func (m *Monitor) Sign() {
	if !m.heard.Load() {
		m.heard.Store(true)
	}
}

// Avoided reports whether requests should go elsewhere. After a pause, one may try a stalled rank that has none.
func (m *Monitor) Avoided(now time.Time) bool {
	switch Evidence(m.evidence.Load()) {
	case None:
		return false
	case Probe, Halted: // the next probe decides
		return true
	default:
		return m.inFlight.Load() > 0 || now.UnixNano() < m.until.Load()
	}
}

// Evidence is the reason why the rank counts as stalled; None when it does not.
func (m *Monitor) Evidence() Evidence { return Evidence(m.evidence.Load()) }

// Silent is how long a stalled rank has made no progress.
func (m *Monitor) Silent() time.Duration { return time.Duration(m.silent.Load()) }

// InFlight counts the requests in flight.
func (m *Monitor) InFlight() int { return int(m.inFlight.Load()) }

// Round is one look at the ranks.
type Round struct {
	Now time.Time
	// Passed is the time since the round before, as far as it counts as silence.
	Passed time.Duration
	// After is the setting chooser.stall.after.
	After time.Duration
	// Elsewhere is when another replica last answered its health probe.
	Elsewhere time.Time
	// SpeedKnown is set once the rank's speed was learned.
	SpeedKnown bool
}

// Look judges the rank and returns the verdict of the round before and the new one.
func (m *Monitor) Look(v *Vitals, r Round) (before, now Evidence) {
	before = Evidence(m.evidence.Load())
	now = m.judge(v, &r, before)
	if (now == Counters || now == Silence) && m.over == r.Passed { // it has just stalled
		m.pause = min(max(firstPause, 2*m.pause), lastPause)
		m.until.Store(r.Now.Add(m.pause).UnixNano())
	}
	if now != None {
		m.silent.Store(int64(m.silence))
	}
	if now != before {
		m.rule(now)
	}
	return before, now
}

// Stalled reports whether the last round found the rank stalled.
func (m *Monitor) Stalled() bool { return m.over > 0 }

// Sick is how long the replica has been unhealthy without progress.
func (m *Monitor) Sick() time.Duration { return m.sick }

func (m *Monitor) judge(v *Vitals, r *Round, before Evidence) Evidence {
	m.gap = time.Duration(float64(m.gap) * math.Exp(-float64(r.Passed)/float64(gapMemory)))
	heard := m.listen(v, r.Now)
	busy := m.inFlight.Load() > 0
	m.sick += r.Passed
	if heard || !v.Unhealthy {
		m.sick = 0
	}
	switch {
	case v.Halted:
		m.silence = 0
		if m.over += r.Passed; heard { // it finishes its requests
			m.over = 0
		}
		return Halted
	case before == Halted:
		m.silence, m.over = 0, 0
		return None
	}
	switch {
	case heard:
		m.gap = max(m.gap, min(m.silence, m.allowed(v, r)*3/2))
		m.silence, m.over, m.pause = 0, 0, 0
		return None
	case busy:
		m.silence += r.Passed
	default:
		m.silence = 0
		if before != Probe {
			m.over = 0
		}
	}
	switch {
	case !v.Asked.IsZero() && v.Late >= LateAfter && m.heardAt.Before(v.Asked.Add(noticeDelay)) && (r.Elsewhere.After(v.Asked) || r.Now.Sub(r.Elsewhere) < recentAnswer):
		m.over += r.Passed
		return Probe
	case before == Probe: // it answers again, or no replica does
		m.over = 0
		before = None
	}
	switch {
	case !busy:
		return before // the next trial decides
	case m.silence < m.allowed(v, r):
		if before == None {
			m.over = 0
		}
		return before
	}
	m.over += r.Passed
	if m.counts(v, r.Now) {
		return Counters
	}
	return Silence
}

// listen reports whether there was progress since the last round.
func (m *Monitor) listen(v *Vitals, now time.Time) bool {
	heard := m.heard.Swap(false)
	if !v.Counted.IsZero() {
		if m.known && (v.Count > m.count || v.Count == m.count && v.KVUsage > m.usage) {
			heard, m.moved = true, true
		}
		m.known, m.count, m.usage = true, v.Count, v.KVUsage
	}
	if heard {
		m.heardAt = now
	}
	return heard
}

// counts reports whether the engine's counters were read since the silence began and are known to move.
func (m *Monitor) counts(v *Vitals, now time.Time) bool {
	return m.moved && !v.Counted.IsZero() && now.Sub(v.Counted) < max(m.silence/2, time.Second)
}

// allowed is how long the rank may be silent.
func (m *Monitor) allowed(v *Vitals, r *Round) time.Duration {
	after, slack, blind := r.After, float64(slackUnknown), !m.counts(v, r.Now)
	if r.SpeedKnown {
		slack = slackKnown
	}
	if blind {
		after *= blindFactor
	}
	return max(after, gapFactor*m.gap, seconds(min(slack*m.longest(blind), time.Hour.Seconds())))
}
