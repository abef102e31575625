package recorder

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Part is a span that is over when it is told of.
type Part struct {
	// Name and the moments of its beginning and end are required.
	Name     string
	From, To time.Time
	// ID was made with NewSpanID; without one, it gets one.
	ID trace.SpanID
	// Failed is the public description of what went wrong; empty when nothing did.
	Failed string
	// Event is one that lies at its end; empty for none.
	Event      string
	EventAttrs []attribute.KeyValue
}

// Draw records a part of s that is over, as a span of t's scope below it. The attributes' keys must
// differ.
func (s *Span) Draw(t *Tracer, p Part, attrs ...attribute.KeyValue) {
	r := s.record
	r.mu.Lock()
	late, ok := r.draw(s, t.scope, &p, attrs)
	r.mu.Unlock()
	if late != nil {
		r.recorder.Keep(late)
	}
	if !ok {
		r.recorder.Dropped(1)
	}
}

// draw is Draw with the lock held.
func (r *record) draw(above *Span, sc *scope, p *Part, attrs []attribute.KeyValue) (late *Trace, ok bool) {
	if r.begun == maxSpansPerTrace {
		return nil, false
	}
	r.begun++
	s := Span{record: r, scope: sc, name: p.Name, kind: trace.SpanKindInternal, id: p.ID, parent: above.id}
	if !s.id.IsValid() {
		s.id = NewSpanID()
	}
	s.start, s.stop = r.nanos(p.From), r.nanos(p.To)
	if r.slab != nil { // its end is free until the next span needs it
		s.body = r.slab.text[len(r.slab.text):]
	}
	s.set(attrs)
	if p.Failed != "" {
		s.setStatus(codes.Error, p.Failed)
	}
	if p.Event != "" {
		s.addEvent(p.Event, p.To, p.EventAttrs)
	}
	return r.write(&s), true
}
