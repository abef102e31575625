package recorder

import (
	"bytes"

	"go.opentelemetry.io/otel/sdk/instrumentation"
	"google.golang.org/protobuf/proto"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Trace holds spans of one trace that have ended, as a collector gets them. Most are written when
// somebody wants to see them. It belongs to one goroutine at a time.
type Trace struct {
	record *record // what is not written yet; nil when all is
	slab   *slab   // where text comes from; nil when it is nobody's but the Trace's
	text   []byte  // the spans, in ScopeSpans that are fields of a ResourceSpans
	scope  *scope  // of the last one, which is not complete; nil when it is
	mark   int     // of the last one, for end
	spans  int
}

// usualText is about what the spans of a request take.
const usualText = 4 << 10

func (r *Recorder) newTrace() *Trace {
	if t, ok := r.traces.Get().(*Trace); ok {
		return t
	}
	return &Trace{}
}

// room makes sure that there is memory to write to.
func (t *Trace) room(r *Recorder) {
	if t.text == nil {
		t.slab = r.newSlab()
		t.text = t.slab.text
	}
}

// next begins a span of a scope.
func (t *Trace) next(s *scope) {
	t.spans++
	if t.scope == s {
		return
	}
	t.close()
	t.text, t.mark = begin(t.text, 2)
	t.text = append(t.text, s.about...)
	t.scope = s
}

// close completes the last ScopeSpans.
func (t *Trace) close() {
	if t.scope != nil {
		t.text = end(append(t.text, t.scope.last...), t.mark)
		t.scope = nil
	}
}

// write writes what is not written yet.
func (t *Trace) write() {
	if r := t.record; r != nil {
		t.record = nil
		r.finish(t)
	}
	t.close()
}

// shrink gives memory back that a written trace does not need.
func (t *Trace) shrink(r *Recorder) {
	if t.slab != nil && len(t.text) < cap(t.text)/4 {
		t.slab.text, t.text = t.text, bytes.Clone(t.text)
		r.slabs.Put(t.slab)
		t.slab = nil
	}
}

// Free gives a trace's memory back. Nobody may use the trace any more.
func (r *Recorder) Free(t *Trace) {
	if t.record != nil {
		t.record.let()
	}
	if t.slab != nil && cap(t.text) <= 4*slabSize {
		t.slab.text = t.text
		r.slabs.Put(t.slab)
	}
	*t = Trace{}
	r.traces.Put(t)
}

// Size is how many bytes the spans take, or about how many when they are not written.
func (t *Trace) Size() int {
	if t.record != nil {
		return len(t.text) + usualText
	}
	return len(t.text)
}

// Len is how many spans there are.
func (t *Trace) Len() int {
	t.write()
	return t.spans
}

// copy is for somebody who keeps the trace.
func (t *Trace) copy() *Trace {
	t.write()
	return &Trace{text: bytes.Clone(t.text), spans: t.spans}
}

// Spans reads the spans, for people to look at. The first one of a trace comes last.
func (t *Trace) Spans() []*tracepb.Span {
	t.write()
	var all tracepb.ResourceSpans
	if err := proto.Unmarshal(t.text, &all); err != nil {
		return nil // it was written here
	}
	var list []*tracepb.Span
	for _, s := range all.GetScopeSpans() {
		list = append(list, s.GetSpans()...)
	}
	return list
}

// scope is what a Tracer's spans have in common.
type scope struct {
	about []byte // the first fields of a ScopeSpans
	last  []byte // the one that follows the spans
}

func newScope(s instrumentation.Scope) *scope {
	return &scope{about: appendScope(nil, s), last: appendString(nil, 3, s.SchemaURL)}
}
