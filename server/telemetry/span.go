package telemetry

import (
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// Bounds of one span.
const (
	maxPerSpan = 128 // attributes, events and links each
	maxText    = 1024
)

// span is a span of a record. What it holds is guarded by its record's lock until it is over, and
// does not change any more from then on: exporters read it without the lock.
type span struct {
	embedded.Span
	sdktrace.ReadOnlySpan // nil; it stands for the method that keeps others from implementing it

	record   *record
	scope    *instrumentation.Scope
	name     string
	parent   *span         // nil for a record's first
	start    time.Duration // since the record began
	stop     time.Duration
	attrs    []attribute.KeyValue
	rare     *rare // nil for most
	kind     trace.SpanKind
	children int
	id       trace.SpanID
	over     bool
}

// rare is what few spans have.
type rare struct {
	events                           []sdktrace.Event
	links                            []sdktrace.Link
	status                           sdktrace.Status
	lostAttrs, lostEvents, lostLinks int
}

// more returns what few spans have, to be changed; the record is locked.
func (s *span) more() *rare {
	if s.rare == nil {
		s.rare = &rare{}
	}
	return s.rare
}

// read returns what few spans have, to be looked at.
func (s *span) read() rare {
	if s.rare == nil {
		return rare{}
	}
	return *s.rare
}

var (
	_ trace.Span            = (*span)(nil)
	_ sdktrace.ReadOnlySpan = (*span)(nil)
)

// change runs do unless the span is over.
func (s *span) change(do func()) {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	if !s.over {
		do()
	}
}

// End implements trace.Span.
func (s *span) End(options ...trace.SpanEndOption) {
	var at time.Time
	if len(options) > 0 {
		c := trace.NewSpanEndConfig(options...)
		at = c.Timestamp()
	}
	if at.IsZero() {
		at = time.Now()
	}
	s.record.end(s, at)
}

// SpanContext implements trace.Span and sdktrace.ReadOnlySpan; it never changes.
func (s *span) SpanContext() trace.SpanContext {
	r := s.record
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: r.id, SpanID: s.id, TraceFlags: r.flags, TraceState: r.state})
}

// IsRecording implements trace.Span.
func (s *span) IsRecording() bool {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return !s.over
}

// TracerProvider implements trace.Span.
func (s *span) TracerProvider() trace.TracerProvider { return s.record.recorder }

// SetName implements trace.Span.
func (s *span) SetName(name string) { s.change(func() { s.name = name }) }

// SetStatus implements trace.Span: what is good stays good, and an error is not taken back.
func (s *span) SetStatus(code codes.Code, description string) {
	s.change(func() {
		m := s.more()
		if m.status.Code > code {
			return
		}
		if code != codes.Error {
			description = ""
		}
		m.status = sdktrace.Status{Code: code, Description: clip(description)}
	})
}

// SetAttributes implements trace.Span.
func (s *span) SetAttributes(list ...attribute.KeyValue) {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	if !s.over {
		s.setAttributes(list)
	}
}

// setAttributes takes attributes over, the last one of a key; the record is locked.
func (s *span) setAttributes(list []attribute.KeyValue) {
	if need := len(s.attrs) + len(list); need > cap(s.attrs) {
		s.attrs = append(s.record.room(need), s.attrs...)
	}
next:
	for _, a := range list {
		if !a.Valid() {
			s.more().lostAttrs++
			continue
		}
		if a.Value.Type() == attribute.STRING && len(a.Value.AsString()) > maxText {
			a.Value = attribute.StringValue(clip(a.Value.AsString()))
		}
		for i := range s.attrs {
			if s.attrs[i].Key == a.Key {
				s.attrs[i] = a
				continue next
			}
		}
		if len(s.attrs) == maxPerSpan {
			s.more().lostAttrs++
			continue
		}
		s.attrs = append(s.attrs, a)
	}
}

func clip(text string) string { return text[:min(len(text), maxText)] }

// AddEvent implements trace.Span.
func (s *span) AddEvent(name string, options ...trace.EventOption) {
	c := trace.NewEventConfig(options...)
	s.change(func() {
		m := s.more()
		if len(m.events) == maxPerSpan {
			m.lostEvents++
			return
		}
		m.events = append(m.events, sdktrace.Event{Name: name, Attributes: c.Attributes(), Time: c.Timestamp()})
	})
}

// RecordError implements trace.Span. An error's text can quote what was said, so only its type is
// kept.
func (s *span) RecordError(err error, options ...trace.EventOption) {
	if err != nil {
		s.AddEvent("exception", append(options, trace.WithAttributes(attribute.String("exception.type", fmt.Sprintf("%T", err))))...)
	}
}

// AddLink implements trace.Span.
func (s *span) AddLink(l trace.Link) { s.change(func() { s.addLink(l) }) }

func (s *span) addLink(l trace.Link) {
	if !l.SpanContext.IsValid() {
		return
	}
	m := s.more()
	if len(m.links) == maxPerSpan {
		m.lostLinks++
		return
	}
	m.links = append(m.links, sdktrace.Link{SpanContext: l.SpanContext, Attributes: l.Attributes})
}

// What follows implements sdktrace.ReadOnlySpan.

func (s *span) Name() string                     { return s.name }
func (s *span) SpanKind() trace.SpanKind         { return s.kind }
func (s *span) StartTime() time.Time             { return s.record.began.Add(s.start) }
func (s *span) EndTime() time.Time               { return s.record.began.Add(s.stop) }
func (s *span) Attributes() []attribute.KeyValue { return s.attrs }
func (s *span) Links() []sdktrace.Link           { return s.read().links }
func (s *span) Events() []sdktrace.Event         { return s.read().events }
func (s *span) Status() sdktrace.Status          { return s.read().status }
func (s *span) Resource() *resource.Resource     { return s.record.recorder.resource }
func (s *span) DroppedAttributes() int           { return s.read().lostAttrs }
func (s *span) DroppedLinks() int                { return s.read().lostLinks }
func (s *span) DroppedEvents() int               { return s.read().lostEvents }

// ChildSpanCount implements sdktrace.ReadOnlySpan; children may begin after their parent's end.
func (s *span) ChildSpanCount() int {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return s.children
}

// Parent implements sdktrace.ReadOnlySpan.
func (s *span) Parent() trace.SpanContext {
	if s.parent == nil {
		return s.record.parent
	}
	return s.parent.SpanContext()
}

// InstrumentationScope implements sdktrace.ReadOnlySpan.
func (s *span) InstrumentationScope() instrumentation.Scope { return *s.scope }

// InstrumentationLibrary implements sdktrace.ReadOnlySpan.
func (s *span) InstrumentationLibrary() instrumentation.Library { return *s.scope } //nolint:staticcheck // the interface has it
