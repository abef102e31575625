package recorder

import (
	"bytes"
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

// Keep implements Sink.
func (k *kept) Keep(t *Trace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list, k.traces = append(k.list, sent(t.Spans())...), k.traces+1
}

// Dropped implements Sink.
func (k *kept) Dropped(n int) { k.lost += n }

// display is a function as a Display.
type display func([]sdktrace.ReadOnlySpan)

func (f display) Add(spans []sdktrace.ReadOnlySpan) { f(spans) }

func newKept(sampler sdktrace.Sampler, change ...func(*Params)) *kept {
	k := &kept{}
	p := Params{Resource: resource.Empty(), Sampler: sampler, To: k}
	for _, c := range change {
		c(&p)
	}
	k.Recorder = New(p)
	return k
}

// tale is a story of spans that are all alike.
type tale struct {
	tracer *Tracer
	name   string
	failed string
	times  int // 0: once
	attrs  []attribute.KeyValue
	events []Event
	told   int
	freed  int
}

func (s *tale) Draw(on *Canvas) {
	s.told++
	for range max(1, s.times) {
		on.Draw(s.tracer, Part{Name: s.name, From: time.Now(), To: time.Now(), Failed: s.failed, Events: s.events}, s.attrs...)
	}
}

func (s *tale) Free() { s.freed++ }

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
		story := &tale{tracer: tr, name: "too late"}
		late.(*Span).Leave(story, true)
		late.End()
		if story.told != 0 || story.freed != 1 {
			t.Errorf("a story that comes too late is told %d and freed %d times", story.told, story.freed)
		}
		if want := map[bool]int{true: 2, false: 0}[chosen]; len(k.list) != want {
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
	}
	root.(*Span).Leave(&tale{tracer: tr, name: "drawn", times: 3}, false)
	for i := range 2 * sdktrace.DefaultAttributeCountLimit {
		root.SetAttributes(attribute.Int(strings.Repeat("k", i+1), i))
		root.AddEvent("event")
		root.AddLink(trace.Link{SpanContext: root.SpanContext()})
	}
	root.SetAttributes(attribute.String("k", strings.Repeat("long", maxText)))
	root.RecordError(errors.New("a secret"))
	root.End()
	if len(k.list) != maxSpansPerTrace || k.lost != 4 {
		t.Fatalf("%d spans and %d lost", len(k.list), k.lost)
	}
	got := k.list[len(k.list)-1]
	if len(got.Attributes) != sdktrace.DefaultAttributeCountLimit || got.DroppedAttributesCount != sdktrace.DefaultAttributeCountLimit || len(got.Events) != sdktrace.DefaultAttributeCountLimit || got.DroppedEventsCount != sdktrace.DefaultAttributeCountLimit+1 || len(got.Links) != sdktrace.DefaultAttributeCountLimit || got.DroppedLinksCount != sdktrace.DefaultAttributeCountLimit {
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
				s.(*Span).Leave(&tale{tracer: tr, name: "drawn"}, false)
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
		if s.Name == "child" && (len(s.Attributes) == 0 || s.Attributes[0].Key != "i") {
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
		child.(*Span).SetAttributes(attribute.Int("i", i))
		root.(*Span).SetAttributes(attribute.String("long", strings.Repeat("x", i*50)))
		root.(*Span).Leave(&tale{tracer: tr, name: "drawn", attrs: []attribute.KeyValue{attribute.Int("i", i)}}, false)
		child.(*Span).SetAttributes(attribute.String("later", strings.Repeat("y", i)))
		child.End()
		root.End()
		got := k.list
		k.list = nil
		if len(got) != 3 || got[0].Attributes[0].Value.GetIntValue() != int64(i) || got[1].Attributes[0].Value.GetIntValue() != int64(i) ||
			len(got[0].Attributes[1].Value.GetStringValue()) != i || len(got[2].Attributes[0].Value.GetStringValue()) != min(i*50, maxText) {
			t.Fatalf("trace %d: %v", i, got)
		}
	}
	if n := k.open.Load(); n != 0 {
		t.Errorf("%d traces are open after the end", n)
	}
}

func TestWhatIsShownIsItsOwn(t *testing.T) {
	var shown [][]sdktrace.ReadOnlySpan
	k := newKept(sdktrace.AlwaysSample(), func(p *Params) { p.Display = display(func(t []sdktrace.ReadOnlySpan) { shown = append(shown, t) }) })
	for _, name := range []string{"first", "second"} {
		_, s := k.Tracer("t").Start(context.Background(), name)
		s.End()
	}
	if len(shown) != 2 || shown[0][0].Name() != "first" || shown[1][0].Name() != "second" || len(shown[0]) != 1 {
		t.Errorf("%v", shown)
	}
}

func TestAStoryIsToldOnceWhenItsTraceIsKept(t *testing.T) {
	for name, c := range map[string]struct{ chosen, failed, kept bool }{
		"chosen":  {chosen: true, kept: true},
		"failed":  {failed: true, kept: true},
		"neither": {},
	} {
		sampler := sdktrace.NeverSample()
		if c.chosen {
			sampler = sdktrace.AlwaysSample()
		}
		k := newKept(sampler)
		tr := k.Tracer("t").(*Tracer)
		ctx, root := tr.Begin(context.Background(), "root", trace.SpanKindServer)
		_, child := tr.BeginAt(ctx, "child", trace.SpanKindClient, trace.SpanID{7}, time.Now().Add(-time.Hour))
		stories := []*tale{{tracer: tr, name: "first"}, {tracer: tr, name: "second"}, {tracer: tr, name: "of the child"}}
		root.(*Span).Leave(stories[0], false)
		child.(*Span).Leave(stories[2], false)
		child.End()
		root.(*Span).Leave(stories[1], c.failed)
		root.End()
		told := map[bool]int{true: 1, false: 0}[c.kept]
		if stories[0].told != told || stories[1].told != told || stories[2].told != told {
			t.Errorf("%s: they are told %d, %d and %d times", name, stories[0].told, stories[1].told, stories[2].told)
		}
		for i, s := range stories {
			if s.freed != 1 {
				t.Errorf("%s: story %d is freed %d times", name, i, s.freed)
			}
		}
		if !c.kept {
			if len(k.list) != 0 {
				t.Errorf("%s: %d spans are kept", name, len(k.list))
			}
			continue
		}
		byName := map[string]*tracepb.Span{}
		for _, s := range k.list {
			byName[s.Name] = s
		}
		top := byName["root"]
		if len(k.list) != 5 || k.list[4] != top {
			t.Fatalf("%s: %d spans; the first one comes last", name, len(k.list))
		}
		for name, parent := range map[string][]byte{"first": top.SpanId, "second": top.SpanId, "child": {7, 0, 0, 0, 0, 0, 0, 0}, "of the child": byName["child"].SpanId} {
			if !bytes.Equal(byName[name].ParentSpanId, parent) {
				t.Errorf("%s is below %x, want %x", name, byName[name].ParentSpanId, parent)
			}
		}
		if took := byName["child"].EndTimeUnixNano - byName["child"].StartTimeUnixNano; took < uint64(time.Hour) {
			t.Errorf("a span that began an hour ago took %d ns", took)
		}
	}
}

// inside draws what a Part and a Canvas can have.
type inside struct{ tracer *Tracer }

func (inside) Free() {}

func (s inside) Draw(on *Canvas) {
	at, id := time.Unix(1000, 0), trace.SpanID{9}
	on.Draw(s.tracer, Part{Name: "outer", From: at, To: at.Add(time.Second), Kind: trace.SpanKindClient, ID: id,
		Events: []Event{{Name: "one", At: at.Add(time.Millisecond)}, {Name: "two", At: at.Add(time.Second), Attrs: []attribute.KeyValue{attribute.Bool("b", true)}}}})
	on.Draw(s.tracer, Part{Name: "inner", From: at, To: at, Above: id, Failed: "why"}, attribute.Int("n", 3))
	on.Set(attribute.String("a", "first"), attribute.String("b", ""))
	on.Set(attribute.String("a", "last"))
	on.SetTexts("list", "x", "", strings.Repeat("long", 400))
	on.SetTexts("none")
	on.rename("renamed")
	on.Fail("told later")
}

func TestAStorysPicture(t *testing.T) {
	k := newKept(sdktrace.AlwaysSample())
	tr := k.Tracer("t").(*Tracer)
	_, root := tr.Begin(context.Background(), "root", trace.SpanKindServer)
	root.(*Span).Leave(inside{tr}, false)
	root.End()
	outer, inner, top := k.list[0], k.list[1], k.list[2]
	if outer.Kind != tracepb.Span_SPAN_KIND_CLIENT || outer.EndTimeUnixNano-outer.StartTimeUnixNano != 1e9 || len(outer.Events) != 2 || outer.Events[0].TimeUnixNano-outer.StartTimeUnixNano != 1e6 || outer.Events[1].Attributes[0].Key != "b" {
		t.Errorf("%v", outer)
	}
	if inner.Kind != tracepb.Span_SPAN_KIND_INTERNAL || !bytes.Equal(inner.ParentSpanId, outer.SpanId) || inner.Status.Message != "why" || inner.Attributes[0].Value.GetIntValue() != 3 {
		t.Errorf("%v", inner)
	}
	if top.Name != "renamed" || top.Status.Message != "told later" || len(top.Attributes) != 4 {
		t.Errorf("%v", top)
	}
	list := top.Attributes[2].Value.GetArrayValue().GetValues()
	if top.Attributes[1].Key != "b" || top.Attributes[0].Value.GetStringValue() != "last" || len(list) != 3 || list[0].GetStringValue() != "x" || len(list[2].GetStringValue()) != maxText || len(top.Attributes[3].Value.GetArrayValue().GetValues()) != 0 {
		t.Errorf("%v", top.Attributes)
	}
}

// A trace may be written while a span that outlives it is still given attributes.
func TestALateSpanBesideTheWritingOfItsTrace(t *testing.T) {
	written := make(chan *Trace, 1)
	k := newKept(sdktrace.AlwaysSample(), func(p *Params) { p.To = KeepFunc(func(t *Trace) { written <- t }) })
	tr := k.Tracer("t").(*Tracer)
	text := strings.Repeat("x", 40)
	for i := range 200 {
		ctx, root := tr.Begin(context.Background(), "root", trace.SpanKindServer)
		_, late := tr.Begin(ctx, "late", trace.SpanKindClient)
		root.(*Span).Leave(inside{tr}, false)
		root.End()
		var set sync.WaitGroup
		set.Go(func() { late.(*Span).SetAttributes(attribute.String("text", text), attribute.Int("i", i)) })
		whole := <-written
		spans := sent(whole.Spans())
		set.Wait()
		if top := spans[len(spans)-1]; len(spans) != 3 || len(top.Attributes) != 4 || top.Attributes[0].Value.GetStringValue() != "last" {
			t.Fatalf("round %d: %v", i, spans)
		}
		late.End()
		whole = <-written
		if s := sent(whole.Spans()); len(s) != 1 || s[0].Attributes[0].Value.GetStringValue() != text || s[0].Attributes[1].Value.GetIntValue() != int64(i) {
			t.Fatalf("round %d, the late one: %v", i, s)
		}
	}
}
