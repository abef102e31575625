package recorder

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// usualSpans are the children of a request that are begun and not drawn.
const usualSpans = 3

// record is a trace as far as this process has a part in it.
type record struct {
	recorder *Recorder
	id       trace.TraceID
	flags    trace.TraceFlags
	state    trace.TraceState
	began    time.Time // spans count their times from here
	unix     int64     // the same in nanoseconds
	chosen   bool      // by the sampler
	shown    bool

	mu      sync.Mutex
	first   Span              // guarded by mu until it is over, as all spans; then by who has the Trace
	others  []Span            // guarded by mu; never grown, for spans must stay where they are
	begun   int               // guarded by mu
	open    int               // guarded by mu: spans that have not ended
	slab    *slab             // guarded by mu: what the bodies of open spans are cut from; nil when none has one
	out     *Trace            // guarded by mu: the spans that have ended; nil when none has, and when the first one has
	stories [maxStories]Story // guarded by mu until the first span is over; then by who has the Trace
	told    int               // of them
	failed  bool              // guarded by mu
	over    bool              // guarded by mu: the first span has ended
	kept    bool              // guarded by mu; set with over
}

// child begins a span below another one; nil when there are too many.
func (r *record) child(parent *Span, sc *scope, name string, kind trace.SpanKind, at time.Time) *Span {
	if at.IsZero() {
		at = time.Now()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == maxSpansPerTrace {
		return nil
	}
	if len(r.others) == cap(r.others) {
		r.others = make([]Span, 0, usualSpans)
	}
	r.others = r.others[:len(r.others)+1]
	s := &r.others[len(r.others)-1]
	r.begin(s, sc, name, kind, at)
	s.parent = parent.id
	return s
}

// begin fills a span in; mu is held.
func (r *record) begin(s *Span, sc *scope, name string, kind trace.SpanKind, at time.Time) {
	r.begun++
	r.open++
	s.id, s.record, s.scope, s.name, s.kind = NewSpanID(), r, sc, name, trace.ValidateSpanKind(kind)
	s.start = r.nanos(at)
}

// nanos is a moment as OTLP writes it. Differences are those of the monotonic clock.
func (r *record) nanos(at time.Time) int64 { return r.unix + int64(at.Sub(r.began)) }

// end ends a span; with the first one the trace is over, and what becomes of it is decided.
func (r *record) end(s *Span, at time.Time) {
	r.mu.Lock()
	if s.over.Load() {
		r.mu.Unlock()
		return
	}
	s.over.Store(true)
	s.stop = r.nanos(at)
	r.open--
	r.failed = r.failed || s.code == codes.Error
	if s != &r.first {
		late := r.write(s)
		r.mu.Unlock()
		if late != nil {
			r.recorder.Keep(late)
		}
		return
	}
	var slow time.Duration
	if r.recorder.Slow != nil {
		slow = r.recorder.Slow()
	}
	r.over, r.kept = true, r.chosen || r.failed || slow > 0 && s.stop-s.start >= int64(slow)
	kept, whole := r.kept, r.out
	r.out = nil
	r.mu.Unlock()
	if whole == nil {
		whole = r.recorder.newTrace()
	}
	whole.record = r
	r.recorder.open.Add(-1)
	if kept && r.told == 0 { // it is all there, and small
		whole.write()
		whole.shrink(r.recorder)
	}
	if r.shown {
		r.recorder.Shown(whole.copy())
	}
	if kept {
		r.recorder.Keep(whole)
		return
	}
	r.recorder.Free(whole)
}

// write encodes a span below the first one that has ended. One that ends after its trace makes a Trace
// of its own, or nothing when the trace was not kept. mu is held.
func (r *record) write(s *Span) (late *Trace) {
	to := r.target()
	if to != nil {
		to.next(s.scope)
		to.text = appendSpan(to.text, r, s)
	}
	s.body = nil
	if r.over {
		return to
	}
	return nil
}

// target is where the next span is written: a Trace of its own when the trace is over and kept, and
// nil when nobody wants it any more. mu is held.
func (r *record) target() *Trace {
	switch {
	case !r.over && r.out == nil:
		r.out = r.recorder.newTrace()
		fallthrough
	case !r.over:
		r.out.room(r.recorder)
		return r.out
	case !r.kept:
		return nil
	}
	late := r.recorder.newTrace()
	late.room(r.recorder)
	return late
}

// finish writes the first span behind what is left to tell of the trace. Spans that outlive it may be
// given attributes meanwhile, from the same memory.
func (r *record) finish(t *Trace) {
	t.room(r.recorder)
	r.mu.Lock()
	c := Canvas{span: &r.first, to: t, left: max(0, maxSpansPerTrace-1-t.spans)}
	for _, st := range r.stories[:r.told] {
		st.Draw(&c)
	}
	t.next(r.first.scope)
	t.text = appendSpan(t.text, r, &r.first)
	r.mu.Unlock()
	r.let()
}

// let gives back what the record holds of memory that is used again; the first span is over, and nobody
// else looks at it.
func (r *record) let() {
	for i, st := range r.stories[:r.told] {
		st.Free()
		r.stories[i] = nil
	}
	r.told, r.first.body = 0, nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == 0 && r.slab != nil {
		r.recorder.slabs.Put(r.slab)
		r.slab = nil
	}
}

// slab is memory that is used again.
type slab struct{ text []byte }

// slabSize holds the spans of a usual request, or the attributes of those that are open.
const slabSize = 5 << 10

func (r *Recorder) newSlab() *slab {
	if s, ok := r.slabs.Get().(*slab); ok {
		s.text = s.text[:0]
		return s
	}
	return &slab{text: make([]byte, 0, slabSize)}
}

// room makes sure that a body can grow by n bytes without moving. mu is held.
func (r *record) room(s *Span, n int) {
	if cap(s.body)-len(s.body) >= n {
		return
	}
	if r.slab == nil {
		r.slab = r.recorder.newSlab()
	}
	const spare = 64 // for the one attribute that comes later
	want := len(s.body) + n + spare
	var place []byte
	if cap(r.slab.text)-len(r.slab.text) >= want {
		at := len(r.slab.text)
		r.slab.text = r.slab.text[:at+want]
		place = r.slab.text[at : at : at+want]
	} else {
		place = make([]byte, 0, want)
	}
	s.body = append(place, s.body...)
}
