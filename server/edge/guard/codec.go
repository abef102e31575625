package guard

import (
	"sync"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

const (
	// smallMessage is the size up to which a message is decoded without further checks.
	smallMessage = 64 << 10
	// maxRest bounds a message without its prompt. Decoded, it may take some thirty times as much.
	maxRest = 4 << 20
)

// codec decodes large messages within the caller's share. Its Marshal is the usual one, but for large answers.
type codec struct {
	encoding.CodecV2
	messages Messages
	// whole are the buffers in which messages of several frames are put together.
	whole *sync.Pool // of *[]byte with smallMessage bytes
}

func newCodec(m Messages) codec {
	return codec{
		encoding.GetCodecV2("proto"), m,
		&sync.Pool{New: func() any { b := make([]byte, smallMessage); return &b }},
	}
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if large, ok := v.(*outgoing); ok {
		return large.marshal()
	}
	return c.CodecV2.Marshal(v)
}

// unmarshalSmall decodes a message of at most smallMessage bytes. The pool of the standard codec would take a buffer of 1 MiB for each
// message above 32 KiB, and clear all of it: that is a prompt of 8,192 token ids.
func (c codec) unmarshalSmall(data mem.BufferSlice, m proto.Message) error {
	if len(data) == 1 {
		return c.messages.Decode(data[0].ReadOnlyData(), m)
	}
	buf := c.whole.Get().(*[]byte)
	defer c.whole.Put(buf)
	return c.messages.Decode((*buf)[:data.CopyTo(*buf)], m)
}

// incoming is a message together with the account that it is charged to.
type incoming struct {
	message any
	account *ledger.Account
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	n := data.Len()
	var account *ledger.Account
	if in, ok := v.(*incoming); ok {
		v, account = in.message, in.account
	}
	m, ok := v.(proto.Message)
	switch {
	case !ok:
		return c.CodecV2.Unmarshal(data, v)
	case n <= smallMessage:
		return c.unmarshalSmall(data, m)
	}
	if n > maxRest && !carriesPrompt(m) {
		return reject(m, noteTooLarge)
	}
	if account.Take(ledger.Body, int64(n)) != nil {
		return reject(m, noteNoRoom)
	}
	defer account.Give(ledger.Body, int64(n))
	wire := data.Materialize()
	if n > maxRest {
		rest, err := restOf(wire, m)
		if err != nil {
			return err
		}
		if rest > maxRest {
			return reject(m, noteTooLarge)
		}
	}
	if body, ok := m.(*httpbody.HttpBody); ok && aliasBody(wire, body) {
		return nil
	}
	if account.Take(ledger.Body, int64(n)) != nil {
		return reject(m, noteNoRoom)
	}
	defer account.Give(ledger.Body, int64(n))
	return c.messages.Decode(wire, m)
}

// promptField reports whether the contract's messages carry prompts in fields of this name. Decoded,
// such a field takes as much as on the wire.
func promptField(name string) bool {
	switch name {
	case "data", "text", "body", "token_ids", "request_body", "response_body":
		return true
	}
	return false
}

func carriesPrompt(m proto.Message) bool {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if promptField(string(fields.Get(i).Name())) {
			return true
		}
	}
	return false
}

// restOf is how many bytes of the wire belong to other fields than the prompt's last one.
func restOf(wire []byte, m proto.Message) (int, error) {
	fields := m.ProtoReflect().Descriptor().Fields()
	total, largest := len(wire), 0
	for len(wire) > 0 {
		number, _, n := protowire.ConsumeField(wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if fd := fields.ByNumber(number); fd != nil && promptField(string(fd.Name())) {
			largest = max(largest, n)
		}
		wire = wire[n:]
	}
	return total - largest, nil
}

// aliasBody decodes a body without copying its data, which aliases wire. It reports false for a body that
// has more than a type and data.
func aliasBody(wire []byte, into *httpbody.HttpBody) bool {
	var contentType, data []byte
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 || kind != protowire.BytesType || number > 2 {
			return false
		}
		value, m := protowire.ConsumeBytes(wire[n:])
		if m < 0 {
			return false
		}
		if number == 1 {
			contentType = value
		} else {
			data = value
		}
		wire = wire[n+m:]
	}
	if !utf8.Valid(contentType) {
		return false
	}
	into.ContentType, into.Data = string(contentType), data[:len(data):len(data)]
	return true
}
