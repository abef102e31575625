package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// Bounds of what is held of traces that are not over.
const (
	maxOpenTraces    = 1 << 14
	maxSpansPerTrace = 256
	// A trace begins with one span; the first child brings room for as many as requests have.
	usualSpans      = 11
	usualAttributes = 32
)

// recorder makes spans and decides about a trace when its first span in this process ends: it is
// kept when the sampler chose it, when it failed, and when it was slow. A trace's spans and their
// attributes lie together in one piece of memory, under one lock of their own: with
// OpenTelemetry's own SDK, whose spans stand alone and are copied when they end, tracing cost
// twice the time. Safe for concurrent use.
type recorder struct {
	embedded.TracerProvider
	resource *resource.Resource
	sampler  sdktrace.Sampler
	slow     time.Duration
	keep     func([]sdktrace.ReadOnlySpan) // must not block
	recent   func([]sdktrace.ReadOnlySpan) // sees every trace, kept or not; may be nil
	dropped  func(int)
	spare    *sparing // nil records every trace, chosen or not
	open     atomic.Int64
}

// Tracer implements trace.TracerProvider.
func (r *recorder) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	c := trace.NewTracerConfig(options...)
	return &tracer{recorder: r, scope: instrumentation.Scope{
		Name: name, Version: c.InstrumentationVersion(), SchemaURL: c.SchemaURL(), Attributes: c.InstrumentationAttributes(),
	}}
}

// tracer makes the spans of one scope.
type tracer struct {
	embedded.Tracer
	recorder *recorder
	scope    instrumentation.Scope
}

// record is a trace as far as this process has a part in it.
type record struct {
	recorder *recorder
	parent   trace.SpanContext // of the first span
	id       trace.TraceID
	flags    trace.TraceFlags
	state    trace.TraceState
	began    time.Time // spans count their times from here
	chosen   bool      // by the sampler

	mu     sync.Mutex
	first  span                    // guarded by mu, as all spans
	others []span                  // guarded by mu; never grown, for spans must stay where they are
	begun  int                     // guarded by mu
	ended  []sdktrace.ReadOnlySpan // guarded by mu until over; the first span comes last
	slab   []attribute.KeyValue    // guarded by mu; what attributes are cut from
	failed bool                    // guarded by mu
	over   bool                    // guarded by mu: the first span has ended
	kept   bool                    // guarded by mu; set with over
}

// Start implements trace.Tracer.
func (t *tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(options...)
	above := trace.SpanFromContext(ctx)
	if parent, ok := above.(*span); ok && !c.NewRoot() {
		s := parent.record.child(parent, t, name, &c)
		if s == nil {
			t.recorder.dropped(1)
			return ctx, noop.Span{}
		}
		return trace.ContextWithSpan(ctx, s), s
	}
	var parent trace.SpanContext
	if !c.NewRoot() {
		parent = above.SpanContext()
	}
	if parent.IsValid() && !parent.IsRemote() {
		return ctx, above // below a span that is not recorded
	}
	if s := t.root(ctx, parent, name, &c); s != nil {
		return trace.ContextWithSpan(ctx, s), s
	}
	// Nobody records this trace; that its spans have a parent here is what tells them.
	unrecorded := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: newSpanID(), TraceState: parent.TraceState()}
	if !parent.IsValid() {
		unrecorded.TraceID = newTraceID()
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(unrecorded))
	return ctx, trace.SpanFromContext(ctx)
}

func newTraceID() (id trace.TraceID) {
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64()|1) // never all zeros
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

func newSpanID() (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// root begins a trace, or this process's part of one; nil when it is not to be recorded.
func (t *tracer) root(ctx context.Context, parent trace.SpanContext, name string, c *trace.SpanConfig) *span {
	id := parent.TraceID()
	if !parent.IsValid() {
		id = newTraceID()
	}
	chosen := t.recorder.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: trace.ContextWithRemoteSpanContext(ctx, parent), TraceID: id, Name: name, Kind: c.SpanKind()})
	if chosen.Decision == sdktrace.Drop && t.recorder.spare != nil && !t.recorder.spare.take(time.Now()) {
		return nil
	}
	if t.recorder.open.Add(1) > maxOpenTraces {
		t.recorder.open.Add(-1)
		return nil
	}
	r := &record{recorder: t.recorder, parent: parent, id: id, state: chosen.Tracestate, chosen: chosen.Decision == sdktrace.RecordAndSample, began: c.Timestamp()}
	r.flags = parent.TraceFlags().WithSampled(r.chosen)
	if r.began.IsZero() {
		r.began = time.Now()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begin(&r.first, nil, t, name, c)
}

// child begins a span below another one; nil when there are too many.
func (r *record) child(parent *span, t *tracer, name string, c *trace.SpanConfig) *span {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == maxSpansPerTrace {
		return nil
	}
	if len(r.others) == cap(r.others) {
		r.others = make([]span, 0, usualSpans)
	}
	r.others = r.others[:len(r.others)+1]
	s := &r.others[len(r.others)-1]
	parent.children++
	return r.begin(s, parent, t, name, c)
}

// begin fills a span in; mu is held.
func (r *record) begin(s, parent *span, t *tracer, name string, c *trace.SpanConfig) *span {
	r.begun++
	s.id = newSpanID()
	s.record, s.parent, s.scope, s.name, s.kind = r, parent, &t.scope, name, trace.ValidateSpanKind(c.SpanKind())
	if at := c.Timestamp(); !at.IsZero() {
		s.start = at.Sub(r.began)
	} else if parent != nil {
		s.start = time.Since(r.began)
	}
	s.setAttributes(c.Attributes())
	for _, l := range c.Links() {
		s.addLink(l)
	}
	return s
}

// end ends a span; with the first one the trace is over, and what becomes of it is decided.
func (r *record) end(s *span, at time.Time) {
	r.mu.Lock()
	if s.over {
		r.mu.Unlock()
		return
	}
	s.over, s.stop = true, at.Sub(r.began)
	r.failed = r.failed || s.read().status.Code == codes.Error
	if r.over { // it ends late
		kept := r.kept
		r.mu.Unlock()
		if kept {
			r.recorder.keep([]sdktrace.ReadOnlySpan{s})
		}
		return
	}
	if r.ended == nil {
		r.ended = make([]sdktrace.ReadOnlySpan, 0, r.begun+1)
	}
	r.ended = append(r.ended, s)
	if s != &r.first {
		r.mu.Unlock()
		return
	}
	slow := r.recorder.slow
	r.over = true
	r.kept = r.chosen || r.failed || slow > 0 && s.stop-s.start >= slow
	spans, kept := r.ended, r.kept
	r.mu.Unlock()
	r.recorder.open.Add(-1)
	if r.recorder.recent != nil {
		r.recorder.recent(spans)
	}
	if kept {
		r.recorder.keep(spans)
	}
}

// room returns an empty slice for n attributes; mu is held.
func (r *record) room(n int) []attribute.KeyValue {
	at := len(r.slab)
	if cap(r.slab)-at < n {
		r.slab, at = make([]attribute.KeyValue, 0, max(n, usualAttributes)), 0
	}
	r.slab = r.slab[:at+n]
	return r.slab[at : at : at+n]
}
