package recorder

import (
	"encoding/binary"
	"math"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// The tags of attributes where OTLP has them: the number of the field and the kind "bytes".
const (
	tagResourceAttribute = 1<<3 | 2
	tagScopeAttribute    = 3<<3 | 2
	tagSpanAttribute     = 9<<3 | 2
	tagEventAttribute    = 3<<3 | 2
	tagLinkAttribute     = 4<<3 | 2
)

// appendHead begins a span as a field of a ScopeSpans; its attributes and the like follow.
func (r *record) appendHead(b []byte, id, parent trace.SpanID, name string, kind trace.SpanKind, start, stop int64) ([]byte, int) {
	b, mark := begin(b, 2)
	b = append(append(b, 1<<3|2, 16), r.id[:]...)
	b = append(append(b, 2<<3|2, 8), id[:]...)
	if r.state.Len() > 0 {
		b = appendString(b, 3, r.state.String())
	}
	if parent.IsValid() {
		b = append(append(b, 4<<3|2, 8), parent[:]...)
	}
	b = appendString(b, 5, name)
	b = append(b, 6<<3, byte(kind)) //nolint:gosec // there are five; the API counts kinds as OTLP does
	b = appendFixed64(b, 7, uint64(start))
	return appendFixed64(b, 8, uint64(stop)), mark
}

// appendSpan writes a span that was begun and has ended.
func appendSpan(b []byte, r *record, s *Span) []byte {
	b, mark := r.appendHead(b, s.id, s.parent, s.name, s.kind, s.start, s.stop)
	b = append(b, s.body...)
	b = appendNumber(b, 10, s.lostAttrs)
	b = appendNumber(b, 12, s.lostEvents)
	b = appendNumber(b, 14, s.lostLinks)
	b = appendStatus(b, s.code, s.description)
	return end(appendFlags(b, 16, r.flags, s.remote), mark)
}

func appendStatus(b []byte, code codes.Code, description string) []byte {
	if code == codes.Unset {
		return append(b, 15<<3|2, 0)
	}
	b, mark := begin(b, 15)
	b = appendString(b, 2, description)
	switch code {
	case codes.Ok:
		b = append(b, 3<<3, 1)
	case codes.Error:
		b = append(b, 3<<3, 2)
	default: // OTLP knows no others
	}
	return end(b, mark)
}

func appendEvent(b []byte, name string, at int64, attrs []attribute.KeyValue) []byte {
	b, mark := begin(b, 11)
	b = appendFixed64(b, 1, uint64(at))
	b = appendString(b, 2, name)
	return end(appendAttributes(b, tagEventAttribute, attrs), mark)
}

func appendLink(b []byte, l *trace.Link) []byte {
	b, mark := begin(b, 13)
	t, s := l.SpanContext.TraceID(), l.SpanContext.SpanID()
	b = append(append(b, 1<<3|2, 16), t[:]...)
	b = append(append(b, 2<<3|2, 8), s[:]...)
	b = appendAttributes(b, tagLinkAttribute, l.Attributes)
	return end(appendFlags(b, 6, l.SpanContext.TraceFlags(), l.SpanContext.IsRemote()), mark)
}

// appendFlags writes the trace flags with what OTLP adds: that it is known whether the other
// context is remote, and whether it is.
func appendFlags(b []byte, n protowire.Number, f trace.TraceFlags, remote bool) []byte {
	flags := uint32(f) | 0x100
	if remote {
		flags |= 0x200
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, n, protowire.Fixed32Type), flags)
}

func appendResource(b []byte, r *resource.Resource) []byte {
	b, mark := begin(b, 1)
	for i := r.Iter(); i.Next(); {
		a := i.Attribute()
		b = appendAttribute(b, tagResourceAttribute, &a)
	}
	return end(b, mark)
}

func appendScope(b []byte, s instrumentation.Scope) []byte {
	b, mark := begin(b, 1)
	b = appendString(b, 1, s.Name)
	b = appendString(b, 2, s.Version)
	for i := s.Attributes.Iter(); i.Next(); {
		a := i.Attribute()
		b = appendAttribute(b, tagScopeAttribute, &a)
	}
	return end(b, mark)
}

func appendAttributes(b []byte, tag byte, list []attribute.KeyValue) []byte {
	for i := range list {
		b = appendAttribute(b, tag, &list[i])
	}
	return b
}

// appendAttribute writes a KeyValue. The sizes are known before, so that nothing moves.
func appendAttribute(b []byte, tag byte, a *attribute.KeyValue) []byte {
	switch a.Value.Type() {
	case attribute.STRING:
		return appendText(b, tag, string(a.Key), clip(a.Value.AsString()))
	case attribute.INT64:
		n := uint64(a.Value.AsInt64())
		b = appendKey(b, tag, string(a.Key), 1+protowire.SizeVarint(n))
		return protowire.AppendVarint(append(b, 3<<3), n)
	case attribute.FLOAT64:
		b = appendKey(b, tag, string(a.Key), 9)
		return binary.LittleEndian.AppendUint64(append(b, 4<<3|1), math.Float64bits(a.Value.AsFloat64()))
	case attribute.BOOL:
		b = appendKey(b, tag, string(a.Key), 2)
		return append(b, 2<<3, byte(protowire.EncodeBool(a.Value.AsBool()))) //nolint:gosec // 0 or 1
	case attribute.STRINGSLICE:
		return appendTexts(b, tag, string(a.Key), a.Value.AsStringSlice())
	case attribute.EMPTY:
		return appendKey(b, tag, string(a.Key), 0)
	default: // kinds that kvpilot does not use
		return appendText(b, tag, string(a.Key), clip(a.Value.String()))
	}
}

func appendText(b []byte, tag byte, key, text string) []byte {
	if n := len(key) + len(text) + 6; n < 1<<7 { // every length takes one byte: one step for most
		at := len(b)
		b = slices.Grow(b, n+2)[:at+n+2]
		to := b[at:]
		to[0], to[1], to[2], to[3] = tag, byte(n), 1<<3|2, byte(len(key))
		to = to[4+copy(to[4:], key):]
		to[0], to[1], to[2], to[3] = 2<<3|2, byte(len(text)+2), 1<<3|2, byte(len(text))
		copy(to[4:], text)
		return b
	}
	return appendAlways(appendKey(b, tag, key, 1+protowire.SizeBytes(len(text))), 1, text)
}

// appendTexts writes a KeyValue that is an array of texts.
func appendTexts(b []byte, tag byte, key string, texts []string) []byte {
	list := 0
	for _, s := range texts {
		list += 1 + protowire.SizeBytes(1+protowire.SizeBytes(len(clip(s))))
	}
	b = appendKey(b, tag, key, 1+protowire.SizeBytes(list))
	b = protowire.AppendVarint(append(b, 5<<3|2), uint64(list)) //nolint:gosec // not negative
	for _, s := range texts {
		s = clip(s)
		b = protowire.AppendVarint(append(b, 1<<3|2), uint64(1+protowire.SizeBytes(len(s)))) //nolint:gosec // not negative
		b = appendAlways(b, 1, s)
	}
	return b
}

// appendKey begins a KeyValue whose value takes size bytes.
func appendKey(b []byte, tag byte, key string, size int) []byte {
	if n := 4 + len(key) + size; n < 1<<7 {
		at := len(b)
		b = slices.Grow(b, n+2)[:at+len(key)+6]
		to := b[at:]
		to[0], to[1], to[2], to[3] = tag, byte(n), 1<<3|2, byte(len(key))
		to = to[4+copy(to[4:], key):]
		to[0], to[1] = 2<<3|2, byte(size)
		return b
	}
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(2+protowire.SizeBytes(len(key))+protowire.SizeBytes(size))) //nolint:gosec // not negative
	b = append(b, 1<<3|2)
	b = protowire.AppendString(b, key)
	b = append(b, 2<<3|2)
	return protowire.AppendVarint(b, uint64(size)) //nolint:gosec // not negative
}

// sizeOf is at least what attributes take, for those of the kinds that kvpilot uses much.
func sizeOf(list []attribute.KeyValue) (n int) {
	for i := range list {
		n += len(list[i].Key) + 20
		if list[i].Value.Type() == attribute.STRING {
			n += len(list[i].Value.AsString())
		}
	}
	return n
}

// forget takes the attribute of a key out of the body, and says whether it was there.
func (s *Span) forget(key string) bool {
	for at := 0; at < len(s.body); {
		size, n := binary.Uvarint(s.body[at+1:])
		from := at + 1 + n
		to := from + int(size) //nolint:gosec // it was written here
		if s.body[at] == tagSpanAttribute {
			length, n := binary.Uvarint(s.body[from+1:])
			if text := s.body[from+1+n:]; string(text[:length]) == key {
				s.body = append(s.body[:at], s.body[to:]...)
				return true
			}
		}
		at = to
	}
	return false
}

// begin starts a nested message in one of the first fifteen fields; most take two bytes for their
// length. end, given its mark, writes that.
func begin(b []byte, n byte) ([]byte, int) {
	b = append(b, n<<3|2, 0, 0)
	return b, len(b)
}

func end(b []byte, mark int) []byte {
	size := len(b) - mark
	switch wide := protowire.SizeVarint(uint64(size)); { //nolint:gosec // not negative
	case wide == 1:
		copy(b[mark-1:], b[mark:])
		b, mark = b[:len(b)-1], mark-1
	case wide > 2:
		b = append(b, make([]byte, wide-2)...)
		copy(b[mark+wide-2:], b[mark:mark+size])
		mark += wide - 2
	}
	protowire.AppendVarint(b[:mark-protowire.SizeVarint(uint64(size))], uint64(size)) //nolint:gosec // not negative
	return b
}

func appendString(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return appendAlways(b, n, s)
}

func appendAlways(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func appendNumber(b []byte, n protowire.Number, v uint32) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

func appendFixed64(b []byte, n byte, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, n<<3|1), v)
}
