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

	mu     sync.Mutex
	first  Span   // guarded by mu, as all spans
	others []Span // guarded by mu; never grown, for spans must stay where they are
	begun  int    // guarded by mu
	open   int    // guarded by mu: spans that have not ended
	slab   *slab  // guarded by mu: what the bodies of open spans are cut from; nil when none can follow
	out    *Trace // guarded by mu: the spans that have ended; nil when the first one has
	failed bool   // guarded by mu
	over   bool   // guarded by mu: the first span has ended
	kept   bool   // guarded by mu; set with over
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
	late := r.write(s)
	s.body = nil
	var whole *Trace
	if s == &r.first {
		slow := r.recorder.Slow
		r.over, r.kept = true, r.chosen || r.failed || slow > 0 && s.stop-s.start >= int64(slow)
		whole, r.out = r.out, nil
	}
	if r.over && r.open == 0 && r.slab != nil {
		r.recorder.slabs.Put(r.slab)
		r.slab = nil
	}
	kept := r.kept
	r.mu.Unlock()
	if whole != nil {
		r.recorder.open.Add(-1)
		if r.shown {
			r.recorder.Shown(whole.copy())
		}
		r.recorder.pass(whole, kept)
	}
	if late != nil {
		r.recorder.Keep(late)
	}
}

// pass hands a trace on, or uses its memory again.
func (r *Recorder) pass(t *Trace, kept bool) {
	if kept {
		r.Keep(t)
		return
	}
	r.Free(t)
}

// write encodes a span that has ended. One that ends after its trace makes a Trace of its own, or
// nothing when the trace was not kept. mu is held.
func (r *record) write(s *Span) (late *Trace) {
	r.failed = r.failed || s.code == codes.Error
	to := r.out
	if r.over {
		if !r.kept {
			return nil
		}
		to = r.recorder.newTrace()
		late = to
	}
	to.add(r, s)
	return late
}

// slab is memory for the bodies of open spans.
type slab struct{ text []byte }

// slabSize holds the attributes of a usual request's open spans.
const slabSize = 3 << 10

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
	const spare = 64 // for the one attribute that comes later
	want := len(s.body) + n + spare
	var place []byte
	if r.slab != nil && cap(r.slab.text)-len(r.slab.text) >= want {
		at := len(r.slab.text)
		r.slab.text = r.slab.text[:at+want]
		place = r.slab.text[at : at : at+want]
	} else {
		place = make([]byte, 0, want)
	}
	s.body = append(place, s.body...)
}
