package recorder

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// upload is a client that keeps what it is given.
type upload struct{ got []*tracepb.ResourceSpans }

func (u *upload) Start(context.Context) error { return nil }
func (u *upload) Stop(context.Context) error  { return nil }

func (u *upload) UploadTraces(_ context.Context, list []*tracepb.ResourceSpans) error {
	u.got = append(u.got, list...)
	return nil
}

// sent are spans as a collector gets them.
func sent(spans []sdktrace.ReadOnlySpan) []*tracepb.Span {
	var u upload
	e := otlptrace.NewUnstarted(&u)
	if err := e.ExportSpans(context.Background(), spans); err != nil {
		panic(err) // it only keeps them
	}
	var list []*tracepb.Span
	for _, rs := range u.got {
		for _, scope := range rs.ScopeSpans {
			list = append(list, scope.Spans...)
		}
	}
	return list
}

// play makes spans with all that a span can have.
func play(p trace.TracerProvider, parent trace.SpanContext) {
	one := p.Tracer("one", trace.WithInstrumentationVersion("1.2"), trace.WithSchemaURL("https://example.org/one"), trace.WithInstrumentationAttributes(attribute.Bool("b", true)))
	two := p.Tracer("two")
	ctx, root := one.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "root", trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.Int("a", 1)))
	kinds := []trace.SpanKind{trace.SpanKindInternal, trace.SpanKindClient, trace.SpanKindProducer, trace.SpanKindConsumer}
	for i, kind := range kinds {
		_, s := two.Start(ctx, "child", trace.WithSpanKind(kind), trace.WithLinks(trace.Link{SpanContext: parent}))
		s.SetAttributes(attribute.String("text", strings.Repeat("long ", 100*i)), attribute.String("empty", ""), attribute.Int("minus", -5), attribute.Float64("half", .5),
			attribute.Bool("yes", true), attribute.Bool("no", false), attribute.StringSlice("list", []string{"a", "", "c"}), attribute.Int("zero", 0), attribute.Int64("most", math.MaxInt64))
		for n := 110; n < 125; n++ { // about where a length takes a second byte
			s.SetAttributes(attribute.String(strings.Repeat("k", n), "v"), attribute.String("text"+strings.Repeat("k", n%7), strings.Repeat("v", n-n%7)))
		}
		s.SetAttributes(attribute.Int("zero", i), attribute.String("minus", "another kind"))
		for range i {
			s.AddEvent("event", trace.WithAttributes(attribute.String("k", "v"), attribute.Bool("dropped", false)))
			s.AddLink(trace.Link{SpanContext: parent, Attributes: []attribute.KeyValue{attribute.Int("k", 1), attribute.Int("l", 2)}})
		}
		switch i {
		case 1:
			s.SetStatus(codes.Error, "broken")
			s.SetStatus(codes.Unset, "not taken back")
		case 2:
			s.SetStatus(codes.Ok, "no text with this")
			s.SetStatus(codes.Error, "good stays good")
		case 3:
			s.SetStatus(codes.Error, "")
		}
		s.End()
		s.SetAttributes(attribute.Int("late", 1))
		s.End()
	}
	root.SetName("renamed")
	root.End()
}

// comparable takes out what no two runs have in common, and puts the rest in order.
func comparable(t *testing.T, list []*tracepb.ResourceSpans) *tracepb.ResourceSpans {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("%d resources", len(list))
	}
	text, err := proto.Marshal(list[0])
	if err != nil {
		t.Fatal(err)
	}
	rs := &tracepb.ResourceSpans{}
	if err := proto.Unmarshal(text, rs); err != nil {
		t.Fatal(err)
	}
	if len(rs.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("fields that OTLP has not: %x", rs.ProtoReflect().GetUnknown())
	}
	for _, scope := range rs.ScopeSpans {
		for _, s := range scope.Spans {
			if len(s.SpanId) != 8 || s.EndTimeUnixNano < s.StartTimeUnixNano || time.Since(time.Unix(0, int64(s.StartTimeUnixNano))) > time.Hour {
				t.Errorf("id %x, from %d to %d", s.SpanId, s.StartTimeUnixNano, s.EndTimeUnixNano)
			}
			s.SpanId, s.StartTimeUnixNano, s.EndTimeUnixNano = nil, 0, 0
			if s.Name == "child" {
				s.ParentSpanId = nil
			}
			for _, e := range s.Events {
				e.TimeUnixNano = 0
			}
			byKey := map[string]string{}
			for _, a := range s.Attributes {
				if _, twice := byKey[a.Key]; twice {
					t.Errorf("%s has two attributes %s", s.Name, a.Key)
				}
				byKey[a.Key] = a.Value.String()
			}
			s.Attributes = nil
			for _, key := range slices.Sorted(maps.Keys(byKey)) {
				s.Name += "\n" + key + "=" + byKey[key]
			}
		}
	}
	return rs
}

// order puts scopes and spans in one order.
func order(rs *tracepb.ResourceSpans) {
	slices.SortFunc(rs.ScopeSpans, func(a, b *tracepb.ScopeSpans) int { return strings.Compare(a.Scope.Name, b.Scope.Name) })
}

func TestSpansAreThoseOfTheSDK(t *testing.T) {
	state, err := trace.ParseTraceState("vendor=value")
	if err != nil {
		t.Fatal(err)
	}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true})
	about := resource.NewWithAttributes("https://example.org/schema", attribute.String("service.name", "x"), attribute.Int("n", 7))

	var theirs, ours upload
	exporter, err := otlptrace.New(t.Context(), &theirs)
	if err != nil {
		t.Fatal(err)
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxText
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	play(sdk, parent)
	if err := sdk.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	through, err := otlptrace.New(t.Context(), &ours)
	if err != nil {
		t.Fatal(err)
	}
	r := New(Params{Resource: about, Sampler: sdktrace.ParentBased(sdktrace.NeverSample()), To: KeepFunc(func(tr *Trace) {
		if err := through.ExportSpans(t.Context(), tr.Spans()); err != nil {
			t.Error(err)
		}
	})})
	play(r, parent)
	got, want := comparable(t, ours.got), comparable(t, theirs.got)
	order(got)
	order(want)
	if !proto.Equal(got, want) {
		t.Errorf("ours:\n%s\ntheirs:\n%s", prototext.Format(got), prototext.Format(want))
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add("key", "text", int64(-1), .5, true, uint8(3))
	f.Add("k", "", int64(math.MinInt64), math.Inf(1), false, uint8(200))
	f.Fuzz(func(t *testing.T, key, text string, number int64, fraction float64, truth bool, times uint8) {
		if key == "" || !utf8.ValidString(key) || !utf8.ValidString(text) {
			return
		}
		text = clip(strings.Repeat(text, int(times)))
		if !utf8.ValidString(text) {
			return
		}
		k := newKept(sdktrace.AlwaysSample())
		tr := k.Tracer("t").(*Tracer)
		_, s := tr.Begin(context.Background(), key, trace.SpanKindServer)
		s.(*Span).SetAttributes(attribute.String(key, text), attribute.Int64(key+"1", number), attribute.Float64(key+"2", fraction), attribute.Bool(key+"3", truth), attribute.StringSlice(key+"4", []string{text, ""}))
		list := []attribute.KeyValue{attribute.String(key, text)}
		s.(*Span).Leave(&tale{tracer: tr, name: text, failed: text, events: []Event{{Name: key, At: time.Now(), Attrs: list}}, attrs: list}, true)
		s.(*Span).SetAttributes(attribute.String(key, text))
		s.End()
		if len(k.list) != 2 || len(k.list[1].Attributes) != 5 || len(k.list[0].Attributes) != 1 {
			t.Fatalf("%v", k.list)
		}
		for _, x := range k.list[1].Attributes {
			if x.Key == key && x.Value.GetStringValue() != text || x.Key == key+"1" && x.Value.GetIntValue() != number || x.Key == key+"3" && x.Value.GetBoolValue() != truth ||
				x.Key == key+"2" && math.Float64bits(x.Value.GetDoubleValue()) != math.Float64bits(fraction) || x.Key == key+"4" && x.Value.GetArrayValue().GetValues()[0].GetStringValue() != text {
				t.Errorf("%s is %v", x.Key, x.Value)
			}
		}
		if d := k.list[0]; d.Name != text || d.Status.GetMessage() != text || d.Events[0].Name != key {
			t.Errorf("%v", d)
		}
	})
}
