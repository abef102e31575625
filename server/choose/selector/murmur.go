package selector

import (
	"encoding/binary"
	"math/bits"
)

// murmur3 is the low half of MurmurHash3's 128-bit form for 64-bit machines.
func murmur3(key string, seed uint32) uint64 {
	const c1, c2 = 0x87c37b91114253d5, 0x4cf5ad432745937f
	h1, h2 := uint64(seed), uint64(seed)
	data := []byte(key)
	n := uint64(len(data))
	mix1 := func(k uint64) uint64 { return bits.RotateLeft64(k*c1, 31) * c2 }
	mix2 := func(k uint64) uint64 { return bits.RotateLeft64(k*c2, 33) * c1 }
	for ; len(data) >= 16; data = data[16:] {
		h1 ^= mix1(binary.LittleEndian.Uint64(data))
		h1 = (bits.RotateLeft64(h1, 27)+h2)*5 + 0x52dce729
		h2 ^= mix2(binary.LittleEndian.Uint64(data[8:]))
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + 0x38495ab5
	}
	var tail [16]byte
	copy(tail[:], data)
	if len(data) > 8 {
		h2 ^= mix2(binary.LittleEndian.Uint64(tail[8:]))
	}
	if len(data) > 0 {
		h1 ^= mix1(binary.LittleEndian.Uint64(tail[:]))
	}
	h1 ^= n
	h2 ^= n
	h1 += h2
	h2 += h1
	h1, h2 = avalanche(h1), avalanche(h2)
	return h1 + h2
}

func avalanche(k uint64) uint64 {
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}
