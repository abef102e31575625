package recorder

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Story is what somebody knows of their work on a request when that is over. The spans that tell it
// are drawn later, and only when the trace is kept: many stories are drawn one after the other, when
// the code and the words that this takes are in the processor's caches, which on a request's own way
// they never are.
type Story interface {
	// Draw draws the spans. It is called once at most, by any goroutine; it must neither block nor
	// look at anything that others still write.
	Draw(on *Canvas)
	// Free is called when the story is not needed any more: behind Draw, or instead of it.
	Free()
}

// maxStories is how many stories a trace has place for: the surface's and the router's.
const maxStories = 2

// Leave leaves a story with the span that it belongs to. failed says that something in it failed, for
// which the trace is kept.
func (s *Span) Leave(st Story, failed bool) {
	r := s.record
	r.mu.Lock()
	switch {
	case s.over.Load() || r.over: // it comes too late
	case s == &r.first && r.told < maxStories:
		r.failed = r.failed || failed
		r.stories[r.told] = st
		r.told++
		r.mu.Unlock()
		return
	default: // a span below the first one is written when it ends: its story is told at once
		r.failed = r.failed || failed
		c := Canvas{span: s, to: r.target(), left: maxSpansPerTrace - r.begun}
		before := c.left
		st.Draw(&c)
		r.begun += before - c.left
	}
	r.mu.Unlock()
	st.Free()
}

// Canvas is where a Story is drawn: on the span that it was left with, and below it. It is the
// Story's until Draw returns.
type Canvas struct {
	span *Span
	to   *Trace
	left int // how many more spans there may be
}

// Part is a span that is over.
type Part struct {
	// Name and the moments of its beginning and end are required.
	Name     string
	From, To time.Time
	// Kind is internal unless it is set.
	Kind trace.SpanKind
	// ID was made with NewSpanID; without one, it gets one.
	ID trace.SpanID
	// Above is the id of the drawn span that it is a part of; without one, that is the Canvas's.
	Above trace.SpanID
	// Failed is the public description of what went wrong; empty when nothing did.
	Failed string
	// Events are moments in it.
	Events []Event
}

// Event is a moment in a Part.
type Event struct {
	Name  string
	At    time.Time
	Attrs []attribute.KeyValue
}

// Set puts attributes on the span.
func (c *Canvas) Set(list ...attribute.KeyValue) {
	c.span.record.room(c.span, sizeOf(list))
	c.span.set(list)
}

// SetTexts puts an attribute on the span that is a list of texts.
func (c *Canvas) SetTexts(key attribute.Key, texts ...string) {
	if c.span.takes(string(key)) {
		c.span.body = appendTexts(c.span.body, tagSpanAttribute, string(key), texts)
	}
}

// Fail marks the span as failed.
func (c *Canvas) Fail(description string) { c.span.setStatus(codes.Error, description) }

// Rename gives the span another name.
func (c *Canvas) Rename(name string) { c.span.name = name }

// Draw writes a part, as a span of t's scope. The attributes' keys must differ.
func (c *Canvas) Draw(t *Tracer, p Part, attrs ...attribute.KeyValue) {
	r := c.span.record
	if c.left == 0 {
		r.recorder.Dropped(1)
		return
	}
	c.left--
	if !p.ID.IsValid() {
		p.ID = NewSpanID()
	}
	if !p.Above.IsValid() {
		p.Above = c.span.id
	}
	c.to.next(t.scope)
	b, mark := r.appendHead(c.to.text, p.ID, p.Above, p.Name, trace.ValidateSpanKind(p.Kind), r.nanos(p.From), r.nanos(p.To))
	attrs = attrs[:min(len(attrs), maxPerSpan)]
	for i := range attrs {
		b = appendAttribute(b, tagSpanAttribute, &attrs[i])
	}
	for i := range p.Events {
		b = appendEvent(b, p.Events[i].Name, r.nanos(p.Events[i].At), p.Events[i].Attrs)
	}
	code := codes.Unset
	if p.Failed != "" {
		code = codes.Error
	}
	b = appendStatus(b, code, clip(p.Failed))
	c.to.text = end(appendFlags(b, 16, r.flags, false), mark)
}
