package grpcapi_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
)

// messages are those of the gRPC listener.
var messages grpcapi.Messages

// wireOf is a message's wire, or the test's end.
func wireOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func withIDs(ids ...uint32) *kvpilotv1.ChooseReplicaRequest {
	return &kvpilotv1.ChooseReplicaRequest{
		Model: "m", Prompt: &kvpilotv1.ChooseReplicaRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}}, SessionId: "s", RequestId: "r",
	}
}

// decodesAlike fails unless Decode says of the wire what proto.Unmarshal says.
func decodesAlike(t *testing.T, wire []byte) {
	t.Helper()
	var want, got kvpilotv1.ChooseReplicaRequest
	wantErr, err := proto.Unmarshal(wire, &want), messages.Decode(wire, &got)
	if (wantErr == nil) != (err == nil) {
		t.Fatalf("%x: error %v, want %v", wire, err, wantErr)
	}
	if err == nil && !proto.Equal(&got, &want) {
		t.Fatalf("%x:\n got %v\nwant %v", wire, &got, &want)
	}
}

// oddWires are requests in forms that no usual writer gives them.
func oddWires(t testing.TB) map[string][]byte {
	ids := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), wireOf(t, &kvpilotv1.TokenIds{Ids: []uint32{7, 8}}))
	text := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "hello")
	single := protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), 9)
	wrap := func(message []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), message)
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	packed := func(b ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
	}
	return map[string][]byte{
		"nothing":                 {},
		"no prompt":               wireOf(t, &kvpilotv1.ChooseReplicaRequest{Model: "m"}),
		"usual":                   wireOf(t, withIDs(1, 2, 1<<32-1)),
		"no ids":                  wireOf(t, withIDs()),
		"twice":                   join(ids, ids),
		"text after":              join(ids, text),
		"text before":             join(text, ids),
		"ids, text, ids":          join(ids, text, ids),
		"not packed":              wrap(join(single, single)),
		"packed and single":       wrap(join(packed(1, 0, 0, 0), single)),
		"cut in an id":            wrap(packed(1, 0, 0, 0, 2)),
		"unknown inside":          wrap(join(packed(1, 0, 0, 0), protowire.AppendString(protowire.AppendTag(nil, 9, protowire.BytesType), "x"))),
		"unknown after":           join(ids, protowire.AppendString(protowire.AppendTag(nil, 900, protowire.BytesType), "x")),
		"another kind":            protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 5),
		"cut off":                 ids[:len(ids)-1],
		"broken after":            join(ids, []byte{0xff}),
		"broken before":           join([]byte{0x0a, 0x7f}, ids),
		"a name that is no UTF-8": join(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff"), ids),
		"bad UTF-8 after":         join(ids, protowire.AppendString(protowire.AppendTag(nil, 7, protowire.BytesType), "\xff")),
		"end of a group":          join(ids, protowire.AppendTag(nil, 1, protowire.EndGroupType)),
	}
}

func TestRequestsWithTokenIDsAreDecodedAsProtoDoes(t *testing.T) {
	for name, wire := range oddWires(t) {
		t.Run(name, func(t *testing.T) { decodesAlike(t, wire) })
	}
}

// The ids must not change with the bytes that they were read from: those belong to a pool.
func TestDecodedTokenIDsAreACopy(t *testing.T) {
	wire := wireOf(t, withIDs(1, 2, 3))
	var m kvpilotv1.ChooseReplicaRequest
	if err := messages.Decode(wire, &m); err != nil {
		t.Fatal(err)
	}
	clear(wire)
	if !proto.Equal(&m, withIDs(1, 2, 3)) {
		t.Errorf("after the buffer was used again: %v", &m)
	}
}

func FuzzDecode(f *testing.F) {
	for _, wire := range oddWires(f) {
		f.Add(wire)
	}
	f.Fuzz(decodesAlike)
}

func BenchmarkDecodeRequest(b *testing.B) {
	ids := make([]uint32, 8192)
	for i := range ids {
		ids[i] = uint32(i * 17)
	}
	wire := wireOf(b, withIDs(ids...))
	for name, decode := range map[string]func([]byte, proto.Message) error{"ours": messages.Decode, "proto": proto.Unmarshal} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var m kvpilotv1.ChooseReplicaRequest
				if err := decode(wire, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
