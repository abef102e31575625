package grpcapi

import (
	"encoding/binary"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// The fields of ChooseReplicaRequest and TokenIds that hold a prompt's ids.
const (
	fieldTokenIDs = 2
	fieldIDs      = 1
)

// Messages reads the contract's messages for the gRPC listener.
type Messages struct{}

// Decode is proto.Unmarshal, faster where a request carries token ids: proto reads packed numbers one by one. It does not keep wire.
// Done MAY take the message's memory back.
func (Messages) Decode(wire []byte, into proto.Message) error {
	m, ok := into.(*kvpilotv1.ChooseReplicaRequest)
	if !ok {
		return proto.Unmarshal(wire, into)
	}
	before, list, after, found := cutTokenIDs(wire)
	if !found {
		return proto.Unmarshal(wire, into)
	}
	// A message is the merger of the parts of its wire, in their order.
	if err := proto.Unmarshal(before, m); err != nil {
		return err
	}
	m.Prompt = &kvpilotv1.ChooseReplicaRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: list}}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(after, m)
}

// cutTokenIDs finds the token ids among a request's fields, and the bytes before and after them. It reports false when they are not there
// once, in the form that writers of the contract give them: a list that is packed, and nothing else.
func cutTokenIDs(wire []byte) (before []byte, list []uint32, after []byte, found bool) {
	for at := 0; at < len(wire); {
		number, kind, n := protowire.ConsumeTag(wire[at:])
		if n < 0 {
			return nil, nil, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, wire[at+n:])
		if size < 0 {
			return nil, nil, nil, false
		}
		end := at + n + size
		if number == fieldTokenIDs {
			message, valid := protowire.ConsumeBytes(wire[at+n:])
			if found || kind != protowire.BytesType || valid < 0 {
				return nil, nil, nil, false
			}
			if list, found = packedIDs(message); !found {
				return nil, nil, nil, false
			}
			before, after = wire[:at], wire[end:]
		}
		at = end
	}
	return before, list, after, found
}

// packedIDs reads the message TokenIds. It reports false when its wire is not one packed list.
func packedIDs(message []byte) ([]uint32, bool) {
	number, kind, n := protowire.ConsumeTag(message)
	if n < 0 || number != fieldIDs || kind != protowire.BytesType {
		return nil, false
	}
	packed, size := protowire.ConsumeBytes(message[n:])
	if size < 0 || n+size != len(message) || len(packed) == 0 || len(packed)%4 != 0 {
		return nil, false
	}
	list := newIDs(len(packed) / 4)
	if littleEndian := binary.NativeEndian.Uint16([]byte{1, 0}) == 1; littleEndian { // as on the wire
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(packed)), packed)
		return list, true
	}
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(packed[4*i:])
	}
	return list, true
}

// Done releases the memory of a message that Decode has read. Its call's handler MUST have returned; the answer need not have been sent. A
// message whose ids may be in use still keeps them: they are part of the answer, or of the answer that a repeated request will get.
func (Messages) Done(m proto.Message) {
	in, ok := m.(*kvpilotv1.ChooseReplicaRequest)
	if !ok || in.GetReturnTokenIds() || in.GetRequestId() != "" {
		return
	}
	list := in.GetTokenIds().GetIds()
	if cap(list) != listIDs {
		return
	}
	in.Prompt = nil
	idLists.Put((*idList)(list[:listIDs]))
}
