package telemetry

import (
	"bytes"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

func TestTheCodecWritesWhatProtobufDoes(t *testing.T) {
	text, err := proto.Marshal(&tracepb.ResourceSpans{SchemaUrl: "x", ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "span"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	mixed := message(text)
	mixed.SchemaUrl = "known"
	for name, m := range map[string]*collectorpb.ExportTraceServiceRequest{
		"a batch":    {ResourceSpans: []*tracepb.ResourceSpans{message(text)}},
		"a long one": {ResourceSpans: []*tracepb.ResourceSpans{message(bytes.Repeat(text, 100))}},
		"two":        {ResourceSpans: []*tracepb.ResourceSpans{message(text), message(text)}},
		"mixed":      {ResourceSpans: []*tracepb.ResourceSpans{mixed}},
		"none":       {},
		"empty":      {ResourceSpans: []*tracepb.ResourceSpans{{}}},
	} {
		want, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newCodec().Marshal(m)
		if err != nil || !bytes.Equal(got.Materialize(), want) {
			t.Errorf("%s: %x, %v; want %x", name, got.Materialize(), err, want)
		}
		got.Free()
	}
}
