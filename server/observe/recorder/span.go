package recorder

import (
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Span is the SDK's span, whose end the SDK learns of when the trace is drawn: the stories of a request
// say things of it that are not known before.
type Span struct {
	sdktrace.ReadWriteSpan
	record *record
	over   atomic.Bool // written under the record's lock
	stop   time.Time   // guarded by the record's lock until it is over
}

var _ trace.Span = (*Span)(nil)

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

// IsRecording implements trace.Span.
func (s *Span) IsRecording() bool { return !s.over.Load() }

// TracerProvider implements trace.Span.
func (s *Span) TracerProvider() trace.TracerProvider { return s.record.recorder }

// SetName implements trace.Span.
func (s *Span) SetName(name string) {
	if s.IsRecording() {
		s.ReadWriteSpan.SetName(name)
	}
}

// SetStatus implements trace.Span.
func (s *Span) SetStatus(code codes.Code, description string) {
	if s.IsRecording() {
		s.ReadWriteSpan.SetStatus(code, clip(description))
	}
}

// SetAttributes implements trace.Span.
func (s *Span) SetAttributes(list ...attribute.KeyValue) {
	if s.IsRecording() {
		s.ReadWriteSpan.SetAttributes(list...)
	}
}

// AddEvent implements trace.Span.
func (s *Span) AddEvent(name string, options ...trace.EventOption) {
	if s.IsRecording() {
		s.ReadWriteSpan.AddEvent(name, options...)
	}
}

// AddLink implements trace.Span.
func (s *Span) AddLink(l trace.Link) {
	if s.IsRecording() {
		s.ReadWriteSpan.AddLink(l)
	}
}

// RecordError implements trace.Span. An error's text can quote prompts and outputs, so only its type is
// kept.
func (s *Span) RecordError(err error, options ...trace.EventOption) {
	if err != nil {
		s.AddEvent("exception", append(options, trace.WithAttributes(attribute.String("exception.type", fmt.Sprintf("%T", err))))...)
	}
}

// Leave leaves a story with the span that it belongs to. failed says that something in it failed, for
// which the trace is kept.
func (s *Span) Leave(st Story, failed bool) {
	r := s.record
	r.mu.Lock()
	late := s.over.Load() || r.fate != fateOpen || len(r.stories) == maxSpansPerTrace
	if !late {
		r.failed = r.failed || failed
		r.stories = append(r.stories, leftStory{s, st})
	}
	r.mu.Unlock()
	if late {
		st.Free()
	}
}

func clip(text string) string { return text[:min(len(text), maxText)] }
