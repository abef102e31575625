package core

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// Digest is the engine's own name for a block: a hash over its tokens and all before them.
type Digest struct{ Hi, Lo uint64 }

// Bytes is the digest as a big-endian string.
func (d Digest) Bytes() [16]byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.Hi)
	binary.BigEndian.PutUint64(b[8:], d.Lo)
	return b
}

// digestOf is the digest of the block with this key, which is its lower half.
func digestOf(key blockhash.Hash) Digest {
	return Digest{Hi: uint64(key) * 0x9e3779b97f4a7c15, Lo: uint64(key)}
}

// keyOf names the block of tokens that follows parent; extra holds its other distinguishing data.
func keyOf(seed uint64, parent blockhash.Hash, tokens []uint32, extra []byte) blockhash.Hash {
	buf := make([]byte, 0, 8+4*len(tokens)+len(extra))
	buf = binary.BigEndian.AppendUint64(buf, uint64(parent))
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return blockhash.Hash(max(1, xxh3.HashSeed(append(buf, extra...), seed)))
}
