package conduct

import (
	"sync"
	"sync/atomic"
	"time"
)

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
	// maxDrag bounds the addition of a record to a cost, in seconds: a rank that is avoided is better than none.
	maxDrag = 600
)

// Rank is the record of one rank. Make one with Fleet.Add.
type Rank struct {
	published published
	probes    probes
	numbers   atomic.Uint64

	mu sync.Mutex
	// group is its equals' name, wider the name of the ranks that it is compared with when it has none. Guarded by the fleet's mu.
	group, wider any
	// Guarded by mu, like all that follows.
	meter      meter
	streams    *Stream // streams with a first token
	samples    samples
	now        evidence
	answers    answers
	claims     claims
	suspicions Suspicion
}

// samples are the last pieces of a rank's streams.
type samples struct {
	ring  [kept]sample
	added int
}

func (l *samples) add(stream uint64, p pace, now time.Time) {
	l.ring[l.added%kept] = sample{stream, now, p}
	l.added++
}

// collect adds the samples that are not too old to w.
func (l *samples) collect(w *workspace, now time.Time) {
	for i := range min(l.added, kept) {
		if s := &l.ring[i]; now.Sub(s.at) <= window {
			w.add(s.stream, s.pace)
		}
	}
}

// Expect sets the expectation of the rank from now on: the time of a typical equal's decode step under the rank's load, and of each
// token of prefill in it, both relative to a step under a small load, and the tokens of a full step.
func (r *Rank) Expect(step, token, budget float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.advance(now)
	r.meter.step, r.meter.token, r.meter.budget = step, token, budget
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
	r.meter.advance(now)
	s.waits = true
	r.meter.wait(s.prefill)
	if r.published.avoided.Load() != nil && r.probes.waived(0, now) {
		s.probe = true
		r.probes.next(now)
	}
}

// take adds a piece of a stream. r.mu is held.
func (r *Rank) take(s *Stream, one pace, now time.Time) {
	r.samples.add(s.number, one, now)
	if s.probe {
		r.probed(one)
	}
}

// probed counts a probe by its pace, compared with the equals' pace when the rank was judged last. r.mu is held.
func (r *Rank) probed(p pace) {
	if r.suspicions&Slow == 0 || r.now.others.likely == 0 {
		return
	}
	if p.strict < r.now.fair*r.now.others.likely {
		r.probes.good++
		return
	}
	r.probes.failed()
}

// look collects the rank's samples, with the samples of the streams that run. r.mu is not held.
func (r *Rank) look(now time.Time, w *workspace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.advance(now)
	w.reset()
	r.samples.collect(w, now)
	for s := r.streams; s != nil; s = s.next {
		tokens := s.tokens.Load()
		if s.uneven {
			continue
		}
		if s.writing.Load() { // its client is slow
			s.mark, s.marked = r.meter.clock, tokens
			continue
		}
		p := r.meter.clock.since(s.mark)
		if p.seconds < leastTime {
			continue
		}
		made := float64(tokens - s.marked)
		one := paceOf(p, made/s.parallel, unreported/s.parallel)
		w.add(s.number, one)
		if made >= enoughTokens || p.seconds >= longTime {
			r.take(s, one, now)
			s.mark, s.marked = r.meter.clock, tokens
		}
	}
	r.now.own, r.now.streams = w.median(), w.streams()
}

// forget drops the samples, and begins again with the streams that run.
func (r *Rank) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples.added = 0
	for s := r.streams; s != nil; s = s.next {
		s.mark, s.marked = r.meter.clock, s.tokens.Load()
	}
}

// About returns the rank's record.
func (r *Rank) About() Record {
	if a := r.published.about.Load(); a != nil {
		return *a
	}
	return Record{Trust: 1}
}

// Drag is the addition of the rank's record to the cost of a request with so many expected output tokens, in seconds. It is nothing for a
// probe.
func (r *Rank) Drag(outputs float64, now time.Time) float64 {
	a := r.published.avoided.Load()
	if a == nil || a.perToken == 0 && a.fixed == 0 || r.probes.waived(outputs, now) {
		return 0
	}
	return min(a.perToken*outputs+a.fixed, maxDrag)
}

// Mirror makes r store the rank's record in to, too, nil for nothing: a reader of many ranks finds it where it reads the rest of them.
func (r *Rank) Mirror(to *atomic.Pointer[Record]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published.mirror = to
	to.Store(r.published.avoided.Load())
}
