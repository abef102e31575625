package telemetry

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// kept is a recorder that shows what it keeps.
type kept struct {
	recorder
	mu      sync.Mutex
	spans   []sdktrace.ReadOnlySpan
	lost    int
	batches int
}

func newKept(sampler sdktrace.Sampler) *kept {
	k := &kept{}
	k.sampler = sampler
	k.keep = func(s []sdktrace.ReadOnlySpan) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.spans, k.batches = append(k.spans, s...), k.batches+1
	}
	k.dropped = func(n int) { k.lost += n }
	return k
}

func TestATraceKeepsWhatOpenTelemetrysSDKKeeps(t *testing.T) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	play := func(p trace.TracerProvider) {
		tr := p.Tracer("scope", trace.WithInstrumentationVersion("1"))
		ctx, root := tr.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "root", trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.Int("a", 1)))
		_, child := tr.Start(ctx, "child", trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(trace.Link{SpanContext: parent}))
		child.SetAttributes(attribute.Int("b", 1), attribute.String("c", "x"))
		child.SetAttributes(attribute.Int("b", 2))
		child.AddEvent("event", trace.WithAttributes(attribute.Bool("e", true)))
		child.SetStatus(codes.Error, "broken")
		child.SetStatus(codes.Unset, "not taken back")
		child.End()
		child.SetAttributes(attribute.Int("late", 1))
		child.End()
		root.SetName("renamed")
		root.SetStatus(codes.Ok, "no text with this")
		root.SetStatus(codes.Error, "good stays good")
		root.End()
	}
	var theirs tracetest.InMemoryExporter
	play(sdktrace.NewTracerProvider(sdktrace.WithSyncer(&theirs)))
	k := newKept(sdktrace.AlwaysSample())
	play(&k.recorder)
	want := theirs.GetSpans()
	if len(k.spans) != len(want) {
		t.Fatalf("%d spans, want %d", len(k.spans), len(want))
	}
	for i, got := range k.spans {
		w := want[i]
		if got.Name() != w.Name || got.SpanKind() != w.SpanKind || got.Status() != w.Status || got.SpanContext().TraceID() != w.SpanContext.TraceID() || got.SpanContext().IsSampled() != w.SpanContext.IsSampled() {
			t.Errorf("span %d: %s %v %+v, want %s %v %+v", i, got.Name(), got.SpanKind(), got.Status(), w.Name, w.SpanKind, w.Status)
		}
		if a, b := attribute.NewSet(got.Attributes()...), attribute.NewSet(w.Attributes...); !a.Equals(&b) {
			t.Errorf("%s has %v, want %v", got.Name(), a.Encoded(attribute.DefaultEncoder()), b.Encoded(attribute.DefaultEncoder()))
		}
		if len(got.Events()) != len(w.Events) || len(got.Links()) != len(w.Links) || got.ChildSpanCount() != w.ChildSpanCount || got.Parent().IsRemote() != w.Parent.IsRemote() {
			t.Errorf("%s: %d events, %d links, %d children", got.Name(), len(got.Events()), len(got.Links()), got.ChildSpanCount())
		}
		if got.EndTime().Before(got.StartTime()) {
			t.Errorf("%s ends before it begins", got.Name())
		}
	}
	if k.spans[0].Parent().SpanID() != k.spans[1].SpanContext().SpanID() {
		t.Error("the child is not below the root")
	}
	if n := k.open.Load(); n != 0 {
		t.Errorf("%d traces are open after the end", n)
	}
}

func TestSpansThatEndLateAreKeptWithTheirTrace(t *testing.T) {
	for _, chosen := range []bool{true, false} {
		sampler := sdktrace.NeverSample()
		if chosen {
			sampler = sdktrace.AlwaysSample()
		}
		k := newKept(sampler)
		tr := k.Tracer("t")
		ctx, root := tr.Start(context.Background(), "root")
		_, late := tr.Start(ctx, "late")
		root.End()
		late.End()
		if want := map[bool]int{true: 2, false: 0}[chosen]; len(k.spans) != want {
			t.Errorf("chosen %v: %d spans are kept, want %d", chosen, len(k.spans), want)
		}
	}
}

func TestATraceIsBounded(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t")
	ctx, root := tr.Start(context.Background(), "root")
	for range 2 * maxSpansPerTrace {
		_, s := tr.Start(ctx, "child")
		s.End()
	}
	for i := range 2 * maxPerSpan {
		root.SetAttributes(attribute.Int(strings.Repeat("k", i+1), i))
		root.AddEvent("event")
		root.AddLink(trace.Link{SpanContext: root.SpanContext()})
	}
	root.SetAttributes(attribute.String("k", strings.Repeat("long", maxText)))
	root.RecordError(errors.New("a secret"))
	root.End()
	if len(k.spans) != maxSpansPerTrace || k.lost != maxSpansPerTrace+1 {
		t.Errorf("%d spans and %d lost", len(k.spans), k.lost)
	}
	got := k.spans[len(k.spans)-1]
	if len(got.Attributes()) != maxPerSpan || got.DroppedAttributes() != maxPerSpan || len(got.Events()) != maxPerSpan || got.DroppedEvents() != maxPerSpan+1 || len(got.Links()) != maxPerSpan || got.DroppedLinks() != maxPerSpan {
		t.Errorf("%d attributes, %d events, %d links", len(got.Attributes()), len(got.Events()), len(got.Links()))
	}
	if v := got.Attributes()[0].Value.AsString(); len(v) != maxText {
		t.Errorf("a text of %d bytes is kept", len(v))
	}
}

func TestOneTraceTakesManyGoroutines(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t")
	ctx, root := tr.Start(context.Background(), "root")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				_, s := tr.Start(ctx, "child")
				s.SetAttributes(attribute.Int("i", i))
				root.SetAttributes(attribute.Int("last", i))
				s.End()
			}
		})
	}
	wg.Wait()
	root.End()
	if len(k.spans) != 161 || k.batches != 1 {
		t.Errorf("%d spans in %d batches, want 161 in one", len(k.spans), k.batches)
	}
}

func TestTurnedOffACallersTraceGoesOn(t *testing.T) {
	tel, err := New(context.Background(), DefaultConfig(), Params{}) // nobody to send to
	if err != nil {
		t.Fatal(err)
	}
	caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	ctx, s := tel.Tracers().Tracer("t").Start(trace.ContextWithRemoteSpanContext(context.Background(), caller), "root")
	if s.IsRecording() || !trace.SpanContextFromContext(ctx).Equal(caller) {
		t.Errorf("recording %v, the context holds %v", s.IsRecording(), trace.SpanContextFromContext(ctx))
	}
	if err := tel.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestATraceThatIsOneTooManyIsNotRecorded(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	k.open.Store(maxOpenTraces)
	_, s := k.Tracer("t").Start(context.Background(), "root")
	if s.IsRecording() || k.open.Load() != maxOpenTraces {
		t.Errorf("recording %v, %d open", s.IsRecording(), k.open.Load())
	}
}
