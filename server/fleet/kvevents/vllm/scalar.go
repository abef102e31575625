package vllm

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errPayload)
}

func wrap(what string, err error) error { return fmt.Errorf("%s: %w: %w", what, errPayload, err) }

// wideUint marks an unsigned integer of eight bytes, the form of nearly every block hash.
const wideUint = 0xcf

func isNil(b []byte) bool { return len(b) > 0 && b[0] == 0xc0 }

// list reads an array header and checks that so many elements can follow. Nil is an empty list.
func list(b []byte, what string) (n int, rest []byte, err error) {
	if isNil(b) {
		return 0, b[1:], nil
	}
	if len(b) > 0 && b[0]&^0x0f == 0x90 { // a short one, with its size in the mark
		if n = int(b[0] & 0x0f); n < len(b) {
			return n, b[1:], nil
		}
	}
	size, rest, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return 0, b, wrap(what, err)
	}
	if uint64(size) > uint64(len(rest)) {
		return 0, b, refuse("%s: %d elements in %d bytes", what, size, len(rest))
	}
	return int(size), rest, nil
}

// text reads a string, or bytes, or nil as the empty string, without a copy.
func text(b []byte, what string) (s, rest []byte, err error) {
	if len(b) > 0 && b[0]&^0x1f == 0xa0 { // a short one, with its size in the mark
		if n := int(b[0] & 0x1f); n < len(b) {
			return b[1 : 1+n], b[1+n:], nil
		}
	}
	switch msgp.NextType(b) {
	case msgp.NilType:
		return nil, b[1:], nil
	case msgp.BinType:
		s, rest, err = msgp.ReadBytesZC(b)
	default:
		s, rest, err = msgp.ReadStringZC(b)
	}
	if err != nil {
		return nil, b, wrap(what, err)
	}
	return s, rest, nil
}

// number reads an integer of any width and sign, or nil as absent.
func number(b []byte, what string) (n int64, present bool, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.NilType:
		return 0, false, b[1:], nil
	case msgp.UintType:
		var u uint64
		u, rest, err = msgp.ReadUint64Bytes(b)
		n = int64(min(u, math.MaxInt64))
	default:
		n, rest, err = msgp.ReadInt64Bytes(b)
	}
	if err != nil {
		return 0, false, b, wrap(what, err)
	}
	return n, true, rest, nil
}

// small reads a count that must fit an int32, nil as def.
func small(b []byte, what string, def int) (int, []byte, error) {
	if len(b) > 0 && b[0] < 0x80 { // a small one, which is its own mark
		return int(b[0]), b[1:], nil
	}
	n, present, rest, err := number(b, what)
	if err != nil || !present {
		return def, rest, err
	}
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0, b, refuse("%s: %d is out of range", what, n)
	}
	return int(n), rest, nil
}

// seconds reads a time stamp in whatever number type it comes.
func seconds(b []byte) (float64, []byte, error) {
	switch msgp.NextType(b) {
	case msgp.Float64Type:
		f, rest, err := msgp.ReadFloat64Bytes(b)
		return f, rest, err
	case msgp.Float32Type:
		f, rest, err := msgp.ReadFloat32Bytes(b)
		return float64(f), rest, err
	default:
		n, _, rest, err := number(b, "ts")
		return float64(n), rest, err
	}
}

func skip(b []byte, what string) ([]byte, error) {
	rest, err := msgp.Skip(b)
	if err != nil {
		return b, wrap(what, err)
	}
	return rest, nil
}

// hash reads one block hash; nil is reported as absent.
func hash(b []byte) (h kvblock.EngineHash, present bool, rest []byte, err error) {
	if len(b) >= 9 && b[0] == wideUint {
		return kvblock.EngineHash(binary.BigEndian.Uint64(b[1:])), true, b[9:], nil
	}
	switch msgp.NextType(b) {
	case msgp.NilType:
		return 0, false, b[1:], nil
	case msgp.UintType:
		u, rest, err := msgp.ReadUint64Bytes(b)
		if err != nil {
			return 0, false, b, wrap("block hash", err)
		}
		return kvblock.EngineHash(u), true, rest, nil
	case msgp.IntType:
		i, rest, err := msgp.ReadInt64Bytes(b)
		if err != nil {
			return 0, false, b, wrap("block hash", err)
		}
		return kvblock.EngineHash(i), true, rest, nil
	case msgp.BinType:
		raw, rest, err := msgp.ReadBytesZC(b)
		if err != nil {
			return 0, false, b, wrap("block hash", err)
		}
		if len(raw) == 0 {
			return 0, false, b, refuse("empty block hash")
		}
		return lastEight(raw), true, rest, nil
	case msgp.StrType:
		raw, rest, err := msgp.ReadStringZC(b)
		if err != nil {
			return 0, false, b, wrap("block hash", err)
		}
		return kvblock.EngineHash(xxh3.Hash(raw)), true, rest, nil // no known engine does; a name all the same
	default:
		return 0, false, b, refuse("block hash of type %s", msgp.NextType(b))
	}
}

// lastEight is vLLM's own integer form of a digest, and of concatenated digests the last one's.
func lastEight(raw []byte) kvblock.EngineHash {
	if len(raw) >= 8 {
		return kvblock.EngineHash(binary.BigEndian.Uint64(raw[len(raw)-8:]))
	}
	var h kvblock.EngineHash
	for _, c := range raw {
		h = h<<8 | kvblock.EngineHash(c)
	}
	return h
}
