package client

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is the standard codec, but for messages of a size that its pool has no buffer for: it would take one of 1 MiB and clear it, for
// each prompt of 8,192 token ids.
type codec struct{ encoding.CodecV2 }

// Messages above lessThanPooled and below pooled bytes are encoded into memory of their own.
const (
	lessThanPooled = 32 << 10
	pooled         = 512 << 10
)

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	if n := proto.Size(m); n <= lessThanPooled || n >= pooled {
		return c.CodecV2.Marshal(v)
	}
	wire, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(wire)}, nil
}
