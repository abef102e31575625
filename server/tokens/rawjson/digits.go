package rawjson

import "math/bits"

// Lists of ids are most of an answer from a tokenizer, so they are read eight bytes at a time. In
// these functions, byte i of a word is the i-th of the text, and a set of bytes has their highest bits.
const (
	eachByte  = 0x0101010101010101
	highBits  = eachByte * 0x80
	lowerBits = eachByte * 0x7F
)

// nonDigits returns the set of bytes of w that are no decimal digits.
func nonDigits(w uint64) uint64 {
	x := w ^ eachByte*'0' // a digit's value, or more than 9
	return (x&lowerBits + eachByte*(0x7F-9) | x) & highBits
}

// equal returns the set of bytes of w that are c.
func equal(w uint64, c byte) uint64 {
	x := w ^ eachByte*uint64(c)
	return ^(x&lowerBits + lowerBits | x) & highBits
}

// position returns a set of bytes as eight bits.
func position(set uint64) uint64 { return set >> 7 * 0x0102040810204080 >> 56 }

// upToSevenDigits reads the number in the last bytes of w. Digits that are next to each other become
// numbers of two, then of four and eight digits.
func upToSevenDigits(w uint64, length int) uint32 {
	other := uint(64 - 8*length)
	v := (w ^ eachByte*'0') >> (other & 63) << (other & 63)
	v = v*10 + v>>8
	return uint32((v&0x000000FF000000FF*(1000000<<32+100) + v>>16&0x000000FF000000FF*(10000<<32+1)) >> 32)
}

// compactUint32s reads numbers of at most seven digits from a compact list, of which one begins at start. It
// returns where the first number begins that it did not read.
//
// The ends of all numbers in 64 bytes are found first: to find one after the other would make each wait for the one before.
func compactUint32s(dst []uint32, b []byte, start int) ([]uint32, int) {
	for i := start; i >= 8 && i+64 <= len(b); i += 64 {
		ends, other := uint64(0), uint64(0)
		for k := range 8 {
			w := word(b[i+8*k:])
			set := nonDigits(w)
			other |= set ^ equal(w, ',')
			ends |= position(set) << (8 * k)
		}
		if other != 0 {
			break
		}
		for ; ends != 0; ends &= ends - 1 {
			end := i + bits.TrailingZeros64(ends)
			length := end - start
			if uint(length-1) >= 7 {
				return dst, start
			}
			dst = append(dst, upToSevenDigits(word(b[end-8:]), length))
			start = end + 1
		}
	}
	return dst, start
}

// compactIDs returns where the compact list of integers that continues with a number at i needs a
// closer look: always at the beginning of a number. Up to there it is correct.
func compactIDs(b []byte, i int) int {
	from, begins := i, uint64(0x80) // the set of bytes where numbers begin
	for ; i+8 <= len(b); i += 8 {
		w := word(b[i:])
		commas := equal(w, ',')
		begins |= commas << 8
		if nonDigits(w) != commas || (commas|equal(w, '0'))&begins != 0 {
			break
		}
		begins = commas >> 56
	}
	i = min(i, len(b))
	for i > from && b[i-1] != ',' {
		i--
	}
	return i
}
