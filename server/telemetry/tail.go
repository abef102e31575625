package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Bounds of the tail decision.
const (
	maxOpenTraces    = 1 << 14
	maxSpansPerTrace = 256
	maxDecided       = 4096
)

// recorder is a sampler that records every span, so that what went wrong can be kept although
// nobody chose it. What it marks as sampled is what the ratio, or the caller, chose.
type recorder struct{ chosen sdktrace.Sampler }

func (r recorder) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	res := r.chosen.ShouldSample(p)
	if res.Decision == sdktrace.Drop {
		res.Decision = sdktrace.RecordOnly
	}
	return res
}

func (r recorder) Description() string { return "recorder{" + r.chosen.Description() + "}" }

// tail decides about a trace when its first span in this process ends: chosen by the sampler,
// failed, or slow. It holds a bounded number of open traces; spans beyond the bounds are
// dropped and counted. Safe for concurrent use.
type tail struct {
	slow    time.Duration
	keep    func([]sdktrace.ReadOnlySpan) // must not block
	recent  func([]sdktrace.ReadOnlySpan) // sees every trace, kept or not; may be nil
	dropped func(int)

	mu      sync.Mutex
	open    map[trace.TraceID]*openTrace // guarded by mu
	decided map[trace.TraceID]bool       // guarded by mu: whether spans that end late are kept
	order   []trace.TraceID              // guarded by mu: decided, oldest first
}

// openTrace is a trace whose first local span has not ended.
type openTrace struct {
	root  trace.SpanID
	spans []sdktrace.ReadOnlySpan
}

func newTail(slow time.Duration, keep, recent func([]sdktrace.ReadOnlySpan), dropped func(int)) *tail {
	return &tail{slow: slow, keep: keep, recent: recent, dropped: dropped, open: map[trace.TraceID]*openTrace{}, decided: map[trace.TraceID]bool{}}
}

// OnStart notes the first local span of a trace.
func (t *tail) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p := s.Parent(); p.IsValid() && !p.IsRemote() {
		return
	}
	id := s.SpanContext().TraceID()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[id] == nil && len(t.open) < maxOpenTraces {
		t.open[id] = &openTrace{root: s.SpanContext().SpanID()}
	}
}

// OnEnd collects a span, and decides when it is the first of its trace.
func (t *tail) OnEnd(s sdktrace.ReadOnlySpan) {
	id := s.SpanContext().TraceID()
	t.mu.Lock()
	o := t.open[id]
	if o == nil {
		kept := t.decided[id] || s.SpanContext().IsSampled()
		t.mu.Unlock()
		if kept {
			t.keep([]sdktrace.ReadOnlySpan{s})
		}
		return
	}
	if len(o.spans) < maxSpansPerTrace || s.SpanContext().SpanID() == o.root {
		o.spans = append(o.spans, s)
	} else {
		defer t.dropped(1)
	}
	if s.SpanContext().SpanID() != o.root {
		t.mu.Unlock()
		return
	}
	delete(t.open, id)
	kept := s.SpanContext().IsSampled() || t.worthIt(s, o)
	t.decide(id, kept)
	t.mu.Unlock()
	if t.recent != nil {
		t.recent(o.spans)
	}
	if kept {
		t.keep(o.spans)
	}
}

// worthIt reports whether a trace that nobody chose is kept.
func (t *tail) worthIt(root sdktrace.ReadOnlySpan, o *openTrace) bool {
	if t.slow > 0 && root.EndTime().Sub(root.StartTime()) >= t.slow {
		return true
	}
	for _, s := range o.spans {
		if s.Status().Code == codes.Error {
			return true
		}
	}
	return false
}

// decide remembers what became of a trace; mu is held.
func (t *tail) decide(id trace.TraceID, kept bool) {
	if !kept {
		return
	}
	t.decided[id] = true
	t.order = append(t.order, id)
	if len(t.order) > maxDecided {
		delete(t.decided, t.order[0])
		t.order = t.order[1:]
	}
}

// Shutdown implements sdktrace.SpanProcessor; the exporters are closed by their owner.
func (t *tail) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (t *tail) ForceFlush(context.Context) error { return nil }
