package recorder

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kept is a recorder that shows what it keeps.
type kept struct {
	*Recorder
	mu     sync.Mutex
	traces int
	list   []*tracepb.Span
	lost   int
}

func newKept(sampler sdktrace.Sampler, change ...func(*Params)) *kept {
	k := &kept{}
	p := Params{Resource: resource.Empty(), Sampler: sampler, Dropped: func(n int) { k.lost += n }}
	p.Keep = func(t *Trace) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.list, k.traces = append(k.list, t.Spans()...), k.traces+1
		k.Free(t)
	}
	for _, c := range change {
		c(&p)
	}
	k.Recorder = New(p)
	return k
}

func TestSpansThatEndLateAreKeptWithTheirTrace(t *testing.T) {
	for _, chosen := range []bool{true, false} {
		sampler := sdktrace.NeverSample()
		if chosen {
			sampler = sdktrace.AlwaysSample()
		}
		k := newKept(sampler)
		tr := k.Tracer("t").(*Tracer)
		ctx, root := tr.Start(context.Background(), "root")
		_, late := tr.Start(ctx, "late")
		root.End()
		late.SetAttributes(attribute.String("still", "open"))
		late.(*Span).Draw(tr, Part{Name: "drawn late", From: time.Now(), To: time.Now()})
		late.End()
		if want := map[bool]int{true: 3, false: 0}[chosen]; len(k.list) != want {
			t.Errorf("chosen %v: %d spans are kept, want %d", chosen, len(k.list), want)
		}
		if inner, s := tr.Begin(ctx, "below what is over", trace.SpanKindInternal); s.IsRecording() || inner != ctx {
			t.Error("a span begins below one that is over")
		}
	}
}

func TestATraceIsBounded(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t").(*Tracer)
	ctx, root := tr.Start(context.Background(), "root")
	for range maxSpansPerTrace {
		_, s := tr.Start(ctx, "child")
		s.End()
		root.(*Span).Draw(tr, Part{Name: "drawn", From: time.Now(), To: time.Now()})
	}
	for i := range 2 * maxPerSpan {
		root.SetAttributes(attribute.Int(strings.Repeat("k", i+1), i))
		root.AddEvent("event")
		root.AddLink(trace.Link{SpanContext: root.SpanContext()})
	}
	root.SetAttributes(attribute.String("k", strings.Repeat("long", maxText)))
	root.RecordError(errors.New("a secret"))
	root.End()
	if len(k.list) != maxSpansPerTrace || k.lost != maxSpansPerTrace+1 {
		t.Fatalf("%d spans and %d lost", len(k.list), k.lost)
	}
	got := k.list[len(k.list)-1]
	if len(got.Attributes) != maxPerSpan || got.DroppedAttributesCount != maxPerSpan || len(got.Events) != maxPerSpan || got.DroppedEventsCount != maxPerSpan+1 || len(got.Links) != maxPerSpan || got.DroppedLinksCount != maxPerSpan {
		t.Errorf("%d attributes, %d events, %d links; lost %d, %d, %d", len(got.Attributes), len(got.Events), len(got.Links), got.DroppedAttributesCount, got.DroppedEventsCount, got.DroppedLinksCount)
	}
	for _, a := range got.Attributes {
		if a.Key == "k" && len(a.Value.GetStringValue()) != maxText {
			t.Errorf("a text of %d bytes is kept", len(a.Value.GetStringValue()))
		}
	}
}

func TestATraceThatIsOneTooManyIsNotRecorded(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	k.open.Store(maxOpenTraces)
	ctx, s := k.Tracer("t").Start(context.Background(), "root")
	if s.IsRecording() || k.open.Load() != maxOpenTraces {
		t.Errorf("recording %v, %d open", s.IsRecording(), k.open.Load())
	}
	if _, below := k.Tracer("t").(*Tracer).Begin(ctx, "child", trace.SpanKindInternal); below.IsRecording() {
		t.Error("a child of a trace that is not recorded is recorded")
	}
}

func TestOneTraceTakesManyGoroutines(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t").(*Tracer)
	ctx, root := tr.Start(context.Background(), "root")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				_, s := tr.Start(ctx, "child")
				s.SetAttributes(attribute.Int("i", i), attribute.String("text", strings.Repeat("x", 100*i)))
				root.SetAttributes(attribute.Int("last", i))
				root.(*Span).Draw(tr, Part{Name: "drawn", From: time.Now(), To: time.Now()}, attribute.Int("i", i))
				s.End()
			}
		})
	}
	wg.Wait()
	root.End()
	if len(k.list) != 161 || k.traces != 1 {
		t.Fatalf("%d spans in %d traces, want 161 in one", len(k.list), k.traces)
	}
	for _, s := range k.list[:160] {
		if len(s.Attributes) == 0 || s.Attributes[0].Key != "i" {
			t.Fatalf("%v", s)
		}
	}
}

// Traces follow each other in the same memory: nothing of one may show in the next.
func TestMemoryIsUsedAgain(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t").(*Tracer)
	for i := range 100 {
		ctx, root := tr.Begin(context.Background(), "root", trace.SpanKindServer)
		_, child := tr.Begin(ctx, "child", trace.SpanKindInternal)
		child.(*Span).Set(attribute.Int("i", i))
		root.(*Span).Set(attribute.String("long", strings.Repeat("x", i*50)))
		root.(*Span).Draw(tr, Part{Name: "drawn", From: time.Now(), To: time.Now()}, attribute.Int("i", i))
		child.(*Span).Set(attribute.String("later", strings.Repeat("y", i)))
		child.End()
		root.End()
		got := k.list
		k.list = nil
		if len(got) != 3 || got[0].Attributes[0].Value.GetIntValue() != int64(i) || got[1].Attributes[0].Value.GetIntValue() != int64(i) ||
			len(got[1].Attributes[1].Value.GetStringValue()) != i || len(got[2].Attributes[0].Value.GetStringValue()) != min(i*50, maxText) {
			t.Fatalf("trace %d: %v", i, got)
		}
	}
	if n := k.open.Load(); n != 0 {
		t.Errorf("%d traces are open after the end", n)
	}
}

func TestWhatIsShownIsACopy(t *testing.T) {
	var shown []*Trace
	k := newKept(sdktrace.AlwaysSample(), func(p *Params) { p.Shown = func(t *Trace) { shown = append(shown, t) } })
	for _, name := range []string{"first", "second"} {
		_, s := k.Tracer("t").Start(context.Background(), name)
		s.End()
	}
	if len(shown) != 2 || shown[0].Spans()[0].Name != "first" || shown[1].Spans()[0].Name != "second" || shown[0].Len() != 1 {
		t.Errorf("%v", shown)
	}
}
