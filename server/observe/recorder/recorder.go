package recorder

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// Bounds of the memory of traces that are not over.
const (
	maxOpenTraces    = 1 << 14
	maxSpansPerTrace = 256
	maxText          = 1024 // of an attribute, unless OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT or OTEL_SPAN_… says otherwise
)

// Params are the parts that a Recorder works with. Sampler and To are required.
type Params struct {
	// Resource is the subject of the spans.
	Resource *resource.Resource
	// Sampler chooses traces.
	Sampler sdktrace.Sampler
	// Slow is the time in nanoseconds from which any trace is kept. Nil or zero: no such rule.
	Slow *atomic.Int64
	// To receives the recorded spans.
	To Sink
	// Display shows some traces when they are over, at most twenty a second, kept or not; nil shows none.
	Display Display
	// OnlyShown says that kept traces go nowhere: traces that were not chosen are recorded only if
	// they are going to be shown.
	OnlyShown bool
}

// Sink takes the spans of a Recorder.
type Sink interface {
	// Keep receives a trace that is kept and owns it. It MUST NOT block.
	Keep(*Trace)
	// Dropped counts spans that could not be recorded.
	Dropped(spans int)
}

// KeepFunc is a Sink that calls a function with each kept trace, and counts no drops.
type KeepFunc func(*Trace)

// Keep implements Sink.
func (f KeepFunc) Keep(t *Trace) { f(t) }

// Dropped implements Sink.
func (KeepFunc) Dropped(int) {}

// Display shows traces.
type Display interface {
	// Add receives the spans of a trace that is over, the first span of the trace last. It MUST NOT block.
	Add([]sdktrace.ReadOnlySpan)
}

// unrecorded is the span of a trace that is not recorded, made once.
var unrecorded trace.Span = noop.Span{}

// Recorder makes spans.
type Recorder struct {
	embedded.TracerProvider
	Params
	sdk  *sdktrace.TracerProvider
	show *sparing
	open atomic.Int64
}

var _ trace.TracerProvider = (*Recorder)(nil)

// New makes a Recorder.
func New(p Params) *Recorder {
	if p.Resource == nil {
		p.Resource = resource.Empty()
	}
	limits := sdktrace.NewSpanLimits() // as OTEL_SPAN_* say
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxText
	}
	return &Recorder{Params: p, show: newSparing(), sdk: sdktrace.NewTracerProvider(
		sdktrace.WithResource(p.Resource), sdktrace.WithRawSpanLimits(limits), sdktrace.WithIDGenerator(planned{}), sdktrace.WithSampler(planned{}),
	)}
}

// isSlow reports whether a trace of this duration is kept for it.
func (r *Recorder) isSlow(took time.Duration) bool {
	if r.Slow == nil {
		return false
	}
	slow := time.Duration(r.Slow.Load())
	return slow > 0 && took >= slow
}

// Tracer implements trace.TracerProvider.
func (r *Recorder) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	return &Tracer{recorder: r, sdk: r.sdk.Tracer(name, options...)}
}

// Tracer makes the spans of one scope.
type Tracer struct {
	embedded.Tracer
	recorder *Recorder
	sdk      trace.Tracer
}

// Start implements trace.Tracer.
func (t *Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(options...)
	above := trace.SpanFromContext(ctx)
	if c.NewRoot() {
		above = unrecorded
	}
	return t.start(ctx, above, trace.SpanID{}, beginning{name, c.SpanKind(), c.Timestamp(), options})
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
	} else if c := current.SpanContext(); c.IsValid() && !c.IsRemote() {
		return ctx, unrecorded
	}
	return t.start(ctx, current, above, beginning{name, kind, at, []trace.SpanStartOption{trace.WithSpanKind(kind)}})
}

// beginning has the arguments with which a span begins.
type beginning struct {
	name    string
	kind    trace.SpanKind
	at      time.Time // zero: now
	options []trace.SpanStartOption
}

// start begins a span below another one, or below the drawn one with the id planned.
func (t *Tracer) start(ctx context.Context, above trace.Span, planned trace.SpanID, b beginning) (context.Context, trace.Span) {
	if parent, ok := above.(*Span); ok {
		if s := t.child(ctx, parent, planned, b); s != nil {
			return trace.ContextWithSpan(ctx, s), s
		}
		t.recorder.To.Dropped(1)
		return ctx, unrecorded
	}
	parent := above.SpanContext()
	if parent.IsValid() && !parent.IsRemote() {
		return ctx, above // below a span that is not recorded
	}
	if s := t.root(ctx, parent, b); s != nil {
		return trace.ContextWithSpan(ctx, s), s
	}
	// This trace is not recorded; that its spans have a parent here is how they know.
	own := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: NewSpanID(), TraceState: parent.TraceState()}
	if !parent.IsValid() {
		own.TraceID = newTraceID()
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(own))
	return ctx, trace.SpanFromContext(ctx)
}

// child begins a span below another one; nil when there are too many.
func (t *Tracer) child(ctx context.Context, parent *Span, planned trace.SpanID, b beginning) *Span {
	r := parent.record
	if !r.admit() {
		return nil
	}
	if planned.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, parent.SpanContext().WithSpanID(planned))
	}
	s := &Span{record: r}
	t.begin(s, &plan{Context: ctx, span: NewSpanID(), result: r.result}, b)
	return s
}

// root begins a trace, or this process's part of one; nil when it is not to be recorded.
func (t *Tracer) root(ctx context.Context, parent trace.SpanContext, b beginning) *Span {
	p := &plan{Context: ctx, trace: parent.TraceID(), span: NewSpanID()}
	if !parent.IsValid() {
		p.trace = newTraceID()
		p.Context = context.Background() // a sampler must not find another parent in it
	}
	from := t.recorder
	p.result = from.Sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: p.Context, TraceID: p.trace, Name: b.name, Kind: b.kind})
	chosen := p.result.Decision == sdktrace.RecordAndSample
	now := time.Now()
	shown := from.Display != nil && from.show.take(now)
	if !chosen && from.OnlyShown && !shown {
		return nil
	}
	if from.open.Add(1) > maxOpenTraces {
		from.open.Add(-1)
		return nil
	}
	if b.at.IsZero() {
		b.at = now
	}
	if !chosen {
		p.result.Decision = sdktrace.RecordOnly
	}
	r := &record{recorder: from, result: p.result, chosen: chosen, shown: shown, began: b.at, begun: 1}
	r.first.record = r
	t.begin(&r.first, p, b)
	return &r.first
}

// begin has the SDK begin a span as planned.
func (t *Tracer) begin(s *Span, p *plan, b beginning) {
	at := b.at
	if at.IsZero() {
		at = time.Now()
	}
	_, own := t.sdk.Start(p, b.name, append(b.options[:len(b.options):len(b.options)], trace.WithTimestamp(s.record.moment(at)))...)
	s.ReadWriteSpan = own.(sdktrace.ReadWriteSpan)
}
