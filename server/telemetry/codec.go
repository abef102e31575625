package telemetry

import (
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec behind this one
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec hands the bytes of a batch to gRPC as they are; all other messages go to protobuf's own codec,
// which would copy a batch into memory that is cleared first.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*collectorpb.ExportTraceServiceRequest); ok && len(m.GetResourceSpans()) == 1 {
		if text := encoded(m.GetResourceSpans()[0]); text != nil {
			head := protowire.AppendVarint([]byte{1<<3 | 2}, uint64(len(text)))
			return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(text)}, nil
		}
	}
	return c.CodecV2.Marshal(v)
}

// message wraps what a recorder.Batch holds: as fields that it does not know, which the library sends
// as it does any others.
func message(text []byte) *tracepb.ResourceSpans {
	m := &tracepb.ResourceSpans{}
	m.ProtoReflect().SetUnknown(text)
	return m
}

// encoded is the text of a message; nil when it was not made by message.
func encoded(m *tracepb.ResourceSpans) []byte {
	if m.GetResource() != nil || len(m.GetScopeSpans()) > 0 || m.GetSchemaUrl() != "" {
		return nil
	}
	return m.ProtoReflect().GetUnknown()
}
