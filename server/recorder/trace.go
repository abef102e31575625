package recorder

import (
	"bytes"
	"slices"

	"go.opentelemetry.io/otel/sdk/instrumentation"
	"google.golang.org/protobuf/proto"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Trace holds spans of one trace that have ended, as a collector gets them.
type Trace struct {
	text  []byte // the spans, each as the field of a ScopeSpans
	runs  []run  // which scope made them
	spans int
}

// run is a sequence of spans of one scope; it ends at this offset.
type run struct {
	scope *scope
	end   int
}

// textSize holds the spans of a usual request.
const textSize = 5 << 10

func (r *Recorder) newTrace() *Trace {
	if t, ok := r.traces.Get().(*Trace); ok {
		return t
	}
	return &Trace{text: make([]byte, 0, textSize), runs: make([]run, 0, 4)}
}

// Free gives a trace's memory back. Nobody may use the trace any more.
func (r *Recorder) Free(t *Trace) {
	t.text, t.runs, t.spans = t.text[:0], t.runs[:0], 0
	if cap(t.text) <= 4*textSize {
		r.traces.Put(t)
	}
}

// Size is how many bytes the spans take.
func (t *Trace) Size() int { return len(t.text) }

// Len is how many spans there are.
func (t *Trace) Len() int { return t.spans }

// add writes a span of r that has ended.
func (t *Trace) add(r *record, s *Span) {
	t.text = appendSpan(t.text, r, s)
	t.spans++
	if n := len(t.runs); n > 0 && t.runs[n-1].scope == s.scope {
		t.runs[n-1].end = len(t.text)
		return
	}
	t.runs = append(t.runs, run{scope: s.scope, end: len(t.text)})
}

// copy is for somebody who keeps the trace.
func (t *Trace) copy() *Trace {
	return &Trace{text: bytes.Clone(t.text), runs: slices.Clone(t.runs), spans: t.spans}
}

// Spans reads the spans, for people to look at. The first one of a trace comes last.
func (t *Trace) Spans() []*tracepb.Span {
	var all tracepb.ScopeSpans
	if err := proto.Unmarshal(t.text, &all); err != nil {
		return nil // it was written here
	}
	return all.GetSpans()
}

// scope is what a Tracer's spans have in common.
type scope struct {
	about []byte // the first fields of a ScopeSpans
	last  []byte // the one that follows the spans
}

func newScope(s instrumentation.Scope) *scope {
	return &scope{about: appendScope(nil, s), last: appendString(nil, 3, s.SchemaURL)}
}

// Message writes the spans of some traces, a ResourceSpans without its tag and length, behind b.
// Spans of one scope come together.
func (r *Recorder) Message(b []byte, list []*Trace) []byte {
	b = append(b, r.about...)
	var scopes []*scope
	for _, t := range list {
		for i := range t.runs {
			if !has(scopes, t.runs[i].scope) {
				scopes = append(scopes, t.runs[i].scope)
			}
		}
	}
	for _, s := range scopes {
		var mark int
		b, mark = begin(b, 2)
		b = append(b, s.about...)
		for _, t := range list {
			from := 0
			for i := range t.runs {
				if t.runs[i].scope == s {
					b = append(b, t.text[from:t.runs[i].end]...)
				}
				from = t.runs[i].end
			}
		}
		b = end(append(b, s.last...), mark)
	}
	return appendString(b, 3, r.Resource.SchemaURL())
}

func has(list []*scope, s *scope) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
