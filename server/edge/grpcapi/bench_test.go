package grpcapi_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// benchDecode compares the wire form of token ids with the packed varints that it was chosen over.
func benchDecode(b *testing.B, in *kvpilotv1.TokenIds) {
	b.Helper()
	wire, err := proto.Marshal(in)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("fixed32", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(wire)))
		for b.Loop() {
			var out kvpilotv1.TokenIds
			if err := proto.Unmarshal(wire, &out); err != nil || len(out.GetIds()) != len(in.GetIds()) {
				b.Fatal(err)
			}
		}
	})
	var packed []byte
	for _, id := range in.GetIds() {
		packed = protowire.AppendVarint(packed, uint64(id))
	}
	b.Run("varint", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(packed)))
		for b.Loop() {
			var out []uint32
			for rest := packed; len(rest) > 0; {
				v, n := protowire.ConsumeVarint(rest)
				out, rest = append(out, uint32(v)), rest[n:]
			}
			if len(out) != len(in.GetIds()) {
				b.Fatal("short")
			}
		}
	})
}
