package recorder

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Story is the account of a part of kvpilot about its work on a request when that is over. Its spans are
// drawn later, and only when the trace is kept: many stories are drawn one after the other, when
// the code and the words that this takes are in the processor's caches, which on a request's own way
// they never are.
type Story interface {
	// Draw draws the spans. It is called once at most, by any goroutine; it must neither block nor
	// look at anything that others still write.
	Draw(on *Canvas)
	// Free is called when the story is not needed any more: behind Draw, or instead of it.
	Free()
}

// Canvas is where a Story is drawn: on the span that it was left with, and below it. It is the
// Story's until Draw returns.
type Canvas struct {
	span    *Span
	plan    plan                 // of the next part
	below   context.Context      //nolint:containedctx // of the drawing of one story
	attrs   []attribute.KeyValue // of the next part, copied, so that a story's lists stay on its stack
	sets    []attribute.KeyValue // on the span, until they are handed to it
	options [2]trace.SpanStartOption
	to      []sdktrace.ReadOnlySpan
	left    int  // how many more spans there may be
	counts  bool // nothing is drawn, the spans are only counted
}

// canvases are used again, one after the other.
var canvases = sync.Pool{New: func() any {
	return &Canvas{attrs: make([]attribute.KeyValue, 0, 32), sets: make([]attribute.KeyValue, 0, 32)}
}}

// newCanvas makes a canvas with place for some more spans.
func newCanvas(left int) *Canvas {
	c, _ := canvases.Get().(*Canvas)
	c.left = left
	return c
}

// free gives the canvas back.
func (c *Canvas) free() {
	clear(c.attrs[:cap(c.attrs)])
	clear(c.sets[:cap(c.sets)])
	*c = Canvas{attrs: c.attrs[:0], sets: c.sets[:0]}
	canvases.Put(c)
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
	// Failed is the public description of the fault; empty for none.
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

// on turns the canvas to another span.
func (c *Canvas) on(s *Span) {
	if c.span == s {
		return
	}
	c.flush()
	c.span = s
	if !c.counts {
		c.below = trace.ContextWithSpan(context.Background(), s)
		c.plan.result = s.record.result
	}
}

// Set puts attributes on the span.
func (c *Canvas) Set(list ...attribute.KeyValue) {
	if !c.counts {
		c.sets = append(c.sets, list...)
	}
}

// flush hands the attributes set on the span to the SDK, all at once: its list grows only once then.
func (c *Canvas) flush() {
	if len(c.sets) > 0 {
		c.span.ReadWriteSpan.SetAttributes(c.sets...)
		c.sets = c.sets[:0]
	}
}

// SetTexts puts an attribute on the span that is a list of texts.
func (c *Canvas) SetTexts(key attribute.Key, texts ...string) {
	c.Set(key.StringSlice(texts))
}

// Fail marks the span as failed.
func (c *Canvas) Fail(description string) {
	if !c.counts {
		c.span.ReadWriteSpan.SetStatus(codes.Error, clip(description))
	}
}

// rename gives the span another name.
func (c *Canvas) rename(name string) {
	if !c.counts {
		c.span.ReadWriteSpan.SetName(name)
	}
}

// Draw draws a part, as a span of t's scope.
func (c *Canvas) Draw(t *Tracer, p Part, attrs ...attribute.KeyValue) {
	r := c.span.record
	if c.left == 0 {
		r.recorder.To.Dropped(1)
		return
	}
	c.left--
	if c.counts {
		return
	}
	c.plan.Context, c.plan.span = c.below, p.ID
	if p.Above.IsValid() {
		c.plan.Context = trace.ContextWithSpanContext(c.below, c.span.SpanContext().WithSpanID(p.Above))
	}
	if !p.ID.IsValid() {
		c.plan.span = NewSpanID()
	}
	options := append(c.options[:0], trace.WithTimestamp(r.moment(p.From)))
	if p.Kind != trace.SpanKindUnspecified {
		options = append(options, trace.WithSpanKind(p.Kind))
	}
	_, s := t.sdk.Start(&c.plan, p.Name, options...)
	if len(attrs) > 0 {
		c.attrs = append(c.attrs[:0], attrs...)
		s.SetAttributes(c.attrs...)
	}
	for _, e := range p.Events {
		s.AddEvent(e.Name, trace.WithTimestamp(r.moment(e.At)), trace.WithAttributes(e.Attrs...))
	}
	if p.Failed != "" {
		s.SetStatus(codes.Error, clip(p.Failed))
	}
	s.End(trace.WithTimestamp(r.moment(p.To)))
	c.to = append(c.to, s.(sdktrace.ReadOnlySpan))
}

// finish has the SDK end a span that is over.
func (c *Canvas) finish(s *Span) {
	s.ReadWriteSpan.End(trace.WithTimestamp(s.stop))
	c.to = append(c.to, s.ReadWriteSpan)
}
