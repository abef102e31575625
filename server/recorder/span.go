package recorder

import (
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// Bounds of one span.
const (
	maxPerSpan = 128 // attributes, events and links each
	maxText    = 1024
)

// Span is a span that is being recorded. All but what never changes is guarded by its record's lock.
type Span struct {
	embedded.Span
	record *record // never changes
	scope  *scope  // never changes
	name   string
	body   []byte // attributes, events and links as OTLP writes them, in the order in which they came
	start  int64  // in nanoseconds since 1970
	stop   int64

	description string
	code        codes.Code
	kind        trace.SpanKind // never changes
	remote      bool           // of the parent
	over        atomic.Bool    // written under the lock
	id, parent  trace.SpanID   // never change

	seen                             [4]uint64 // a bit for each key that may be in the body
	attrs, events, links             uint8
	lostAttrs, lostEvents, lostLinks uint32
}

var _ trace.Span = (*Span)(nil)

// change runs do unless the span is over.
func (s *Span) change(do func()) {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	if !s.over.Load() {
		do()
	}
}

// End implements trace.Span.
func (s *Span) End(options ...trace.SpanEndOption) {
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

// SpanContext implements trace.Span; it never changes.
func (s *Span) SpanContext() trace.SpanContext {
	r := s.record
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: r.id, SpanID: s.id, TraceFlags: r.flags, TraceState: r.state})
}

// IsRecording implements trace.Span.
func (s *Span) IsRecording() bool { return !s.over.Load() }

// TracerProvider implements trace.Span.
func (s *Span) TracerProvider() trace.TracerProvider { return s.record.recorder }

// SetName implements trace.Span.
func (s *Span) SetName(name string) { s.change(func() { s.name = name }) }

// SetStatus implements trace.Span: what is good stays good, and an error is not taken back.
func (s *Span) SetStatus(code codes.Code, description string) {
	s.change(func() { s.setStatus(code, description) })
}

func (s *Span) setStatus(code codes.Code, description string) {
	if s.code > code {
		return
	}
	if code != codes.Error {
		description = ""
	}
	s.code, s.description = code, clip(description)
}

// SetAttributes implements trace.Span.
func (s *Span) SetAttributes(list ...attribute.KeyValue) { s.Set(list...) }

// Set is SetAttributes. Called by this name, on a Span and not on the interface, the list needs no
// memory of its own.
func (s *Span) Set(list ...attribute.KeyValue) {
	if len(list) == 0 {
		return
	}
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	if s.over.Load() {
		return
	}
	s.record.room(s, sizeOf(list))
	s.set(list)
}

// set writes attributes, the last one of a key; the record is locked.
func (s *Span) set(list []attribute.KeyValue) {
	for i := range list {
		a := &list[i]
		if !a.Valid() {
			s.lostAttrs++
			continue
		}
		if s.takes(string(a.Key)) {
			s.body = appendAttribute(s.body, tagSpanAttribute, a)
		}
	}
}

// takes makes place for an attribute, also by taking out an older one of its key; the record is locked.
func (s *Span) takes(key string) bool {
	word, bit := mark(key)
	seen := &s.seen[word]
	if *seen&bit != 0 && s.forget(key) {
		s.attrs--
	}
	if s.attrs == maxPerSpan {
		s.lostAttrs++
		return false
	}
	*seen |= bit
	s.attrs++
	return true
}

// mark is the place of a key in a Span's seen. Keys are written by programmers, so their length and
// a few letters tell nearly all apart; two with one place only cost a look.
func mark(key string) (word, bit uint64) {
	n := len(key)
	hash := uint64(n) //nolint:gosec // not negative
	for _, at := range [...]int{n - 1, max(n-2, 0), n / 2, n * 3 / 4} {
		hash = hash*31 + uint64(key[at])
	}
	hash *= 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: the upper bits depend on all
	return hash >> 62, 1 << (hash >> 56 & 63)
}

// AddEvent implements trace.Span.
func (s *Span) AddEvent(name string, options ...trace.EventOption) {
	c := trace.NewEventConfig(options...)
	s.change(func() { s.addEvent(name, c.Timestamp(), c.Attributes()) })
}

// addEvent writes an event; the record is locked.
func (s *Span) addEvent(name string, at time.Time, attrs []attribute.KeyValue) {
	if s.events == maxPerSpan {
		s.lostEvents++
		return
	}
	s.events++
	s.record.room(s, sizeOf(attrs)+len(name)+32)
	s.body = appendEvent(s.body, name, s.record.nanos(at), attrs)
}

// RecordError implements trace.Span. An error's text can quote what was said, so only its type is
// kept.
func (s *Span) RecordError(err error, options ...trace.EventOption) {
	if err != nil {
		s.AddEvent("exception", append(options, trace.WithAttributes(attribute.String("exception.type", fmt.Sprintf("%T", err))))...)
	}
}

// AddLink implements trace.Span.
func (s *Span) AddLink(l trace.Link) {
	if !l.SpanContext.IsValid() {
		return
	}
	s.change(func() {
		if s.links == maxPerSpan {
			s.lostLinks++
			return
		}
		s.links++
		s.record.room(s, sizeOf(l.Attributes)+64)
		s.body = appendLink(s.body, &l)
	})
}

func clip(text string) string { return text[:min(len(text), maxText)] }
