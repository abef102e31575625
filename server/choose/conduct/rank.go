package conduct

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Suspicion is a set of reasons to avoid a rank.
type Suspicion uint8

// The reasons.
const (
	// Slow: its output tokens take much longer than those of its equals.
	Slow Suspicion = 1 << iota
	// Empty: it gives empty answers where others do not.
	Empty
	// Unproven: its answers do not show as cached what it claims to hold.
	Unproven
)

// Suspicions lists the reasons one by one.
func Suspicions() []Suspicion { return []Suspicion{Slow, Empty, Unproven} }

// String gives one reason in the form that metrics and JSON use.
func (s Suspicion) String() string {
	switch s {
	case Slow:
		return "slow"
	case Empty:
		return "empty"
	case Unproven:
		return "unproven"
	}
	return "none"
}

// Names lists the reasons of a set.
func (s Suspicion) Names() (list []string) {
	for _, one := range Suspicions() {
		if s&one != 0 {
			list = append(list, one.String())
		}
	}
	return list
}

// Record is what is known of a rank. It is a plain value.
type Record struct {
	Suspicions Suspicion
	// Slowness is the time of the rank's output tokens over that of its equals' under the same load, Token that time in seconds; 0 when
	// unknown.
	Slowness, Token float64
	// EmptyShare is the share of answers that were empty although another replica gave one.
	EmptyShare float64
	// Trust is the share of what the rank claims to hold that counts.
	Trust float64
	// perToken and fixed are what the record adds to a cost in seconds, per expected output token and once.
	perToken, fixed float64
}

const (
	// unreported is how many tokens a stream may have given that were not reported yet: the router reports them by eights.
	unreported = 8
	// A stream that runs counts from leastTime on, in seconds, one that has ended also from leastTokens on. A piece of it is a sample once it has
	// enoughTokens, or has taken longTime.
	leastTime, longTime       = 0.4, 4.0
	leastTokens, enoughTokens = 12, 96
	// kept is the number of samples, window their greatest age, and distinct the number of streams that they must come from.
	kept     = 64
	window   = 20 * time.Second
	distinct = 3
	// firstProbe and lastProbe bound the time between the probes of a rank that is avoided. cleared is the number of good ones in
	// succession that clear it.
	firstProbe = 10 * time.Second
	lastProbe  = 2 * time.Minute
	// A probe of more expected tokens than shortProbe begins longProbe later.
	shortProbe = 64
	longProbe  = 5 * time.Second
	cleared    = 2
	// maxDrag bounds what a record adds to a cost, in seconds: a rank that is avoided is better than none.
	maxDrag = 600
)

// sample is a piece of one stream.
type sample struct {
	stream uint64
	at     time.Time
	pace
}

// pace is the time of a token.
type pace struct {
	// likely, least and most are by the rank's clocks, and take the stream to have given all that it may have; strict is the likely one if it
	// has given no more than was reported.
	likely, least, most, strict float64
	// token is in seconds.
	token, weight float64
}

// paceOf is the pace of a stream that gave made tokens in p, and may have given more by slack.
func paceOf(p clock, made, slack float64) pace {
	most := max(made+slack, 1)
	return pace{p.likely / most, p.least / most, p.most / most, p.likely / max(made, 1), p.seconds / max(made+slack/2, 1), min(p.seconds, longTime)}
}

// Rank is the record of one rank. Make one with Fleet.Add.
type Rank struct {
	// avoided is set while something is held against the rank; probeAt is when it gets its next probe, in nanoseconds.
	avoided atomic.Pointer[Record]
	probeAt atomic.Int64
	about   atomic.Pointer[Record]
	numbers atomic.Uint64

	mu sync.Mutex
	// group is its equals' name, wider that of those it is compared with when it has none. Guarded by the fleet's mu.
	group, wider any
	// step and token are what a decode step takes under the rank's load, and each token of prefill in it, relative to a decode step under a
	// small load; budget is the tokens of a full step. Guarded by mu, like all that follows.
	step, token, budget float64
	clock               clock
	at                  time.Time
	waiting             int     // streams without a first token
	prefill             float64 // their uncached tokens
	streams             *Stream // those with one
	ring                [kept]sample
	added               int
	now                 evidence
	interval            time.Duration
	good                int
	answers             answers
	claims              claims
	suspicions          Suspicion
	mirror              *atomic.Pointer[Record]
}

// Expect sets what is expected of the rank from now on: what a decode step of a typical equal would take under the rank's load, and each
// token of prefill in it, both relative to a step under a small load, and the tokens of a full step.
func (r *Rank) Expect(step, token, budget float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance(now)
	r.step, r.token, r.budget = step, token, budget
}

// Work is a stream as it is sent to a rank.
type Work struct {
	// Uncached are the tokens to prefill, Parallel the answers that the stream carries; 0 is one.
	Uncached, Parallel int
	// Uneven is set when the pieces of the stream do not show how many tokens came: then it is no evidence of pace.
	Uneven bool
}

// Enter notes a stream that was sent to the rank.
func (r *Rank) Enter(s *Stream, w Work, now time.Time) {
	s.rank, s.prefill, s.parallel, s.uneven, s.number = r, float64(w.Uncached), float64(max(1, w.Parallel)), w.Uneven, r.numbers.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance(now)
	s.waits = true
	r.waiting++
	r.prefill += s.prefill
	if r.avoided.Load() != nil && r.due(now) {
		s.probe = true
		r.probeAt.Store(now.Add(r.interval).UnixNano())
	}
}

func (r *Rank) due(now time.Time) bool { return now.UnixNano() >= r.probeAt.Load() }

// advance brings the clock up to now. r.mu is held.
func (r *Rank) advance(now time.Time) {
	passed := now.Sub(r.at).Seconds()
	if r.at.IsZero() || passed <= 0 || r.step <= 0 {
		if passed > 0 {
			r.at = now
		}
		return
	}
	r.at = now
	c := &r.clock
	c.seconds += passed
	c.most += passed / r.step
	if r.waiting == 0 {
		c.least += passed / r.step
		c.likely += passed / r.step
		return
	}
	c.likely += passed / (r.step + min(r.prefill, r.budget)*r.token)
}

// take adds a piece of a stream. r.mu is held.
func (r *Rank) take(s *Stream, one pace, now time.Time) {
	r.ring[r.added%kept] = sample{s.number, now, one}
	r.added++
	if s.probe {
		r.probed(one)
	}
}

// probed counts a probe by its pace, compared with what the equals had when the rank was judged last. r.mu is held.
func (r *Rank) probed(p pace) {
	if r.suspicions&Slow == 0 || r.now.others.likely == 0 {
		return
	}
	if p.strict < r.now.fair*r.now.others.likely {
		r.good++
		return
	}
	r.good = 0
	r.interval = min(2*r.interval, lastProbe)
}

// look collects the rank's samples, with those of the streams that run. r.mu is not held.
func (r *Rank) look(now time.Time, w *workspace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance(now)
	w.reset()
	for i := range min(r.added, kept) {
		if s := &r.ring[i]; now.Sub(s.at) <= window {
			w.add(s.stream, s.pace)
		}
	}
	for s := r.streams; s != nil; s = s.next {
		tokens := s.tokens.Load()
		if s.uneven {
			continue
		}
		if s.writing.Load() { // its client is slow
			s.mark, s.marked = r.clock, tokens
			continue
		}
		p := r.clock.since(s.mark)
		if p.seconds < leastTime {
			continue
		}
		made := float64(tokens - s.marked)
		one := paceOf(p, made/s.parallel, unreported/s.parallel)
		w.add(s.number, one)
		if made >= enoughTokens || p.seconds >= longTime {
			r.take(s, one, now)
			s.mark, s.marked = r.clock, tokens
		}
	}
	r.now.own, r.now.streams = w.median(), w.streams()
}

// forget drops the samples, and begins again with the streams that run.
func (r *Rank) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = 0
	for s := r.streams; s != nil; s = s.next {
		s.mark, s.marked = r.clock, s.tokens.Load()
	}
}

// About is what is known of the rank.
func (r *Rank) About() Record {
	if a := r.about.Load(); a != nil {
		return *a
	}
	return Record{Trust: 1}
}

// waived reports whether a request with so many expected output tokens is a probe, which a short one is earlier than a long one: if the rank
// is still slow, it takes less time.
func (r *Rank) waived(outputs float64, now time.Time) bool {
	at := r.probeAt.Load()
	if outputs > shortProbe {
		at += int64(longProbe)
	}
	return now.UnixNano() >= at
}

// Drag is what the rank's record adds to the cost of a request with so many expected output tokens, in seconds. It is nothing for a probe.
func (r *Rank) Drag(outputs float64, now time.Time) float64 {
	a := r.avoided.Load()
	if a == nil || a.perToken == 0 && a.fixed == 0 || r.waived(outputs, now) {
		return 0
	}
	return min(a.perToken*outputs+a.fixed, maxDrag)
}

// Mirror makes r store what is held against the rank in to, too, nil for nothing: a reader of many ranks finds it where it reads the rest of them.
func (r *Rank) Mirror(to *atomic.Pointer[Record]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mirror = to
	to.Store(r.avoided.Load())
}

// workspace is the memory of one look, reused.
type workspace struct {
	paces  []pace
	values []weighed
	seen   []uint64
}

type weighed struct{ value, weight float64 }

func (w *workspace) reset() { w.paces, w.seen = w.paces[:0], w.seen[:0] }

func (w *workspace) add(stream uint64, p pace) {
	w.paces, w.seen = append(w.paces, p), append(w.seen, stream)
}

// streams is how many streams the paces are of.
func (w *workspace) streams() int {
	slices.Sort(w.seen)
	w.seen = slices.Compact(w.seen)
	return len(w.seen)
}

// median is the weighted median of each ratio.
func (w *workspace) median() (m pace) {
	if len(w.paces) == 0 {
		return pace{}
	}
	of := func(read func(*pace) float64) float64 {
		w.values = w.values[:0]
		all := 0.0
		for i := range w.paces {
			p := &w.paces[i]
			w.values = append(w.values, weighed{read(p), p.weight})
			all += p.weight
		}
		slices.SortFunc(w.values, func(a, b weighed) int {
			switch {
			case a.value < b.value:
				return -1
			case a.value > b.value:
				return 1
			}
			return 0
		})
		left := all / 2
		for _, v := range w.values {
			if left -= v.weight; left <= 0 {
				return v.value
			}
		}
		return w.values[len(w.values)-1].value
	}
	m.likely = of(func(p *pace) float64 { return p.likely })
	m.least = of(func(p *pace) float64 { return p.least })
	m.most = of(func(p *pace) float64 { return p.most })
	m.strict = of(func(p *pace) float64 { return p.strict })
	m.token = of(func(p *pace) float64 { return p.token })
	for i := range w.paces {
		m.weight += w.paces[i].weight
	}
	return m
}

// ratio is how much slower p is than the others.
func (others pace) ratio(p pace) float64 {
	if others.likely <= 0 {
		return 0
	}
	return p.likely / others.likely
}
