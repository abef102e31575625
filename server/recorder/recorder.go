package recorder

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

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
)

// Params are what a Recorder works with. Sampler, Keep and Dropped are required.
type Params struct {
	// Resource is what the spans are about.
	Resource *resource.Resource
	// Sampler chooses traces.
	Sampler sdktrace.Sampler
	// Slow gives the time from which any trace is kept. Nil or zero: no such rule.
	Slow func() time.Duration
	// Keep takes over a trace that is kept; it must not block.
	Keep func(*Trace)
	// Dropped is told how many spans could not be recorded.
	Dropped func(int)
	// Shown is given copies of some traces when they are over, at most twenty a second, kept or not.
	// It must not block; nil shows nobody.
	Shown func(*Trace)
	// OnlyShown says that nobody takes kept traces: those that were not chosen are recorded only if
	// they are going to be shown.
	OnlyShown bool
}

// unrecorded is a span that nobody records, made once.
var unrecorded trace.Span = noop.Span{}

// Recorder makes spans.
type Recorder struct {
	embedded.TracerProvider
	Params
	about []byte // the resource, encoded
	show  *sparing
	open  atomic.Int64

	traces, slabs sync.Pool
}

var _ trace.TracerProvider = (*Recorder)(nil)

// New makes a Recorder.
func New(p Params) *Recorder {
	if p.Resource == nil {
		p.Resource = resource.Empty()
	}
	return &Recorder{Params: p, about: appendResource(nil, p.Resource), show: newSparing()}
}

// Tracer implements trace.TracerProvider.
func (r *Recorder) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	c := trace.NewTracerConfig(options...)
	return &Tracer{recorder: r, scope: newScope(instrumentation.Scope{
		Name: name, Version: c.InstrumentationVersion(), SchemaURL: c.SchemaURL(), Attributes: c.InstrumentationAttributes(),
	})}
}

// Tracer makes the spans of one scope.
type Tracer struct {
	embedded.Tracer
	recorder *Recorder
	scope    *scope
}

// Start implements trace.Tracer.
func (t *Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(options...)
	above := trace.SpanFromContext(ctx)
	if c.NewRoot() {
		above = unrecorded
	}
	ctx, s := t.start(ctx, above, name, c.SpanKind(), c.Timestamp())
	if own, ok := s.(*Span); ok {
		own.Set(c.Attributes()...)
		for _, l := range c.Links() {
			own.AddLink(l)
		}
	}
	return ctx, s
}

// Begin is Start without options, but for one thing: below a span that is not recorded, or over, it
// makes none.
func (t *Tracer) Begin(ctx context.Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	return t.BeginAt(ctx, name, kind, trace.SpanID{}, time.Time{})
}

// BeginAt is Begin for a span that began at a moment in the past, or that is a part of the drawn span
// with the id above, which need not be drawn yet; both may be left out.
func (t *Tracer) BeginAt(ctx context.Context, name string, kind trace.SpanKind, above trace.SpanID, at time.Time) (context.Context, trace.Span) {
	current := trace.SpanFromContext(ctx)
	if parent, ok := current.(*Span); ok {
		if parent.over.Load() {
			return ctx, unrecorded
		}
		ctx, s := t.start(ctx, current, name, kind, at)
		if own, ok := s.(*Span); ok && above.IsValid() {
			own.parent = above // nobody else has seen it
		}
		return ctx, s
	}
	if c := current.SpanContext(); c.IsValid() && !c.IsRemote() {
		return ctx, unrecorded
	}
	return t.start(ctx, current, name, kind, at)
}

func (t *Tracer) start(ctx context.Context, above trace.Span, name string, kind trace.SpanKind, at time.Time) (context.Context, trace.Span) {
	if parent, ok := above.(*Span); ok {
		s := parent.record.child(parent, t.scope, name, kind, at)
		if s == nil {
			t.recorder.Dropped(1)
			return ctx, unrecorded
		}
		return trace.ContextWithSpan(ctx, s), s
	}
	parent := above.SpanContext()
	if parent.IsValid() && !parent.IsRemote() {
		return ctx, above // below a span that is not recorded
	}
	if s := t.root(ctx, parent, name, kind, at); s != nil {
		return trace.ContextWithSpan(ctx, s), s
	}
	// Nobody records this trace; that its spans have a parent here is what tells them.
	own := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: NewSpanID(), TraceState: parent.TraceState()}
	if !parent.IsValid() {
		own.TraceID = newTraceID()
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(own))
	return ctx, trace.SpanFromContext(ctx)
}

// root begins a trace, or this process's part of one; nil when it is not to be recorded.
func (t *Tracer) root(ctx context.Context, parent trace.SpanContext, name string, kind trace.SpanKind, at time.Time) *Span {
	id := parent.TraceID()
	if !parent.IsValid() {
		id = newTraceID()
		ctx = context.Background() // a sampler must not find another parent in it
	}
	p := t.recorder
	chosen := p.Sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: id, Name: name, Kind: kind})
	now := time.Now()
	shown := p.Shown != nil && p.show.take(now)
	if chosen.Decision == sdktrace.Drop && p.OnlyShown && !shown {
		return nil
	}
	if p.open.Add(1) > maxOpenTraces {
		p.open.Add(-1)
		return nil
	}
	if !at.IsZero() {
		now = at
	}
	r := &record{recorder: p, id: id, chosen: chosen.Decision == sdktrace.RecordAndSample, shown: shown, began: now, unix: now.UnixNano(), state: chosen.Tracestate}
	r.flags = parent.TraceFlags().WithSampled(r.chosen)
	s := &r.first
	r.begin(s, t.scope, name, kind, now)
	s.parent, s.remote = parent.SpanID(), parent.IsRemote()
	return s
}

func newTraceID() (id trace.TraceID) {
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64()|1) // never all zeros
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

// NewSpanID makes the id of a span that is drawn later.
func NewSpanID() (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
