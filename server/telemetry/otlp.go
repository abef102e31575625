package telemetry

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// The OTLP request is written straight from the spans. OpenTelemetry's exporter builds a tree of
// messages first, which took as much CPU time as all of the rest of tracing together.

// appendRequest writes an ExportTraceServiceRequest. The spans come from one provider: they share
// their resource.
func appendRequest(b []byte, spans []sdktrace.ReadOnlySpan) []byte {
	if len(spans) == 0 {
		return b
	}
	b, request := begin(b, 1)
	b, resource := begin(b, 1)
	for i := spans[0].Resource().Iter(); i.Next(); {
		b = appendAttribute(b, 1, i.Attribute())
	}
	b = end(b, resource)
	var scopes []instrumentation.Scope
	for _, s := range spans {
		scope := s.InstrumentationScope()
		if !contains(scopes, scope) {
			scopes = append(scopes, scope)
			b = appendScope(b, scope, spans)
		}
	}
	b = appendString(b, 3, spans[0].Resource().SchemaURL())
	return end(b, request)
}

func contains(scopes []instrumentation.Scope, scope instrumentation.Scope) bool {
	for i := range scopes {
		if scopes[i] == scope {
			return true
		}
	}
	return false
}

// appendScope writes the spans of one scope.
func appendScope(b []byte, scope instrumentation.Scope, spans []sdktrace.ReadOnlySpan) []byte {
	b, all := begin(b, 2)
	b, about := begin(b, 1)
	b = appendString(b, 1, scope.Name)
	b = appendString(b, 2, scope.Version)
	for i := scope.Attributes.Iter(); i.Next(); {
		b = appendAttribute(b, 3, i.Attribute())
	}
	b = end(b, about)
	for _, s := range spans {
		if s.InstrumentationScope() == scope {
			b = appendSpan(b, s)
		}
	}
	b = appendString(b, 3, scope.SchemaURL)
	return end(b, all)
}

func appendSpan(b []byte, s sdktrace.ReadOnlySpan) []byte {
	b, mark := begin(b, 2)
	c, parent := s.SpanContext(), s.Parent()
	b = appendIDs(b, c)
	b = appendString(b, 3, c.TraceState().String())
	if id := parent.SpanID(); id.IsValid() {
		b = appendBytes(b, 4, id[:])
	}
	b = appendString(b, 5, s.Name())
	b = appendNumber(b, 6, uint64(s.SpanKind())) // the SDK counts kinds as OTLP does
	b = appendTime(b, 7, s.StartTime())
	b = appendTime(b, 8, s.EndTime())
	for _, a := range s.Attributes() {
		b = appendAttribute(b, 9, a)
	}
	b = appendNumber(b, 10, dropped(s.DroppedAttributes()))
	for _, e := range s.Events() {
		var event int
		b, event = begin(b, 11)
		b = appendTime(b, 1, e.Time)
		b = appendString(b, 2, e.Name)
		for _, a := range e.Attributes {
			b = appendAttribute(b, 3, a)
		}
		b = appendNumber(b, 4, dropped(e.DroppedAttributeCount))
		b = end(b, event)
	}
	b = appendNumber(b, 12, dropped(s.DroppedEvents()))
	for _, l := range s.Links() {
		var link int
		b, link = begin(b, 13)
		b = appendIDs(b, l.SpanContext)
		for _, a := range l.Attributes {
			b = appendAttribute(b, 4, a)
		}
		b = appendNumber(b, 5, dropped(l.DroppedAttributeCount))
		b = appendFlags(b, 6, l.SpanContext.TraceFlags(), l.SpanContext)
		b = end(b, link)
	}
	b = appendNumber(b, 14, dropped(s.DroppedLinks()))
	b = appendStatus(b, s.Status())
	b = appendFlags(b, 16, c.TraceFlags(), parent)
	return end(b, mark)
}

func appendStatus(b []byte, s sdktrace.Status) []byte {
	b, mark := begin(b, 15)
	b = appendString(b, 2, s.Description)
	switch s.Code {
	case codes.Ok:
		b = appendNumber(b, 3, 1)
	case codes.Error:
		b = appendNumber(b, 3, 2)
	case codes.Unset:
	}
	return end(b, mark)
}

func appendIDs(b []byte, c trace.SpanContext) []byte {
	t, s := c.TraceID(), c.SpanID()
	return appendBytes(appendBytes(b, 1, t[:]), 2, s[:])
}

// appendFlags writes the trace flags with what OTLP adds: that it is known whether the other
// context is remote, and whether it is.
func appendFlags(b []byte, n protowire.Number, f trace.TraceFlags, other trace.SpanContext) []byte {
	flags := uint32(f) | 0x100
	if other.IsRemote() {
		flags |= 0x200
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, n, protowire.Fixed32Type), flags)
}

func appendAttribute(b []byte, n protowire.Number, a attribute.KeyValue) []byte {
	b, mark := begin(b, n)
	b = appendString(b, 1, string(a.Key))
	b, value := begin(b, 2)
	b = appendValue(b, a.Value)
	return end(end(b, value), mark)
}

// appendValue writes the fields of an AnyValue. Kinds that kvpilot does not use become text.
func appendValue(b []byte, v attribute.Value) []byte {
	switch v.Type() {
	case attribute.STRING:
		return protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), v.AsString())
	case attribute.BOOL:
		return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), protowire.EncodeBool(v.AsBool()))
	case attribute.INT64:
		return protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(v.AsInt64()))
	case attribute.FLOAT64:
		return protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), math.Float64bits(v.AsFloat64()))
	case attribute.STRINGSLICE:
		b, list := begin(b, 5)
		for _, s := range v.AsStringSlice() {
			var item int
			b, item = begin(b, 1)
			b = end(protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), s), item)
		}
		return end(b, list)
	case attribute.EMPTY:
		return b
	default:
		return protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), v.String())
	}
}

// begin starts a nested message; end, given its mark, writes its length.
func begin(b []byte, n protowire.Number) ([]byte, int) {
	b = append(protowire.AppendTag(b, n, protowire.BytesType), 0)
	return b, len(b)
}

// end makes room for a length of more than one byte, which is rare but for the outermost messages.
func end(b []byte, mark int) []byte {
	size := len(b) - mark
	more := protowire.SizeVarint(uint64(size)) - 1
	if more > 0 {
		b = append(b, make([]byte, more)...)
		copy(b[mark+more:], b[mark:mark+size])
	}
	protowire.AppendVarint(b[:mark-1], uint64(size))
	return b
}

func appendString(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func appendBytes(b []byte, n protowire.Number, p []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), p)
}

func appendNumber(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendTime(b []byte, n protowire.Number, t time.Time) []byte {
	nanos := uint64(max(0, t.UnixNano()))
	if nanos == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, n, protowire.Fixed64Type), nanos)
}

func dropped(n int) uint64 { return uint64(min(max(0, n), math.MaxUint32)) }
