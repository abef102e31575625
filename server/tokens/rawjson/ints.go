package rawjson

import (
	"slices"
	"strconv"
)

// Uint32s appends the ids of the list of integers in b, which must hold nothing else, to dst.
// A number that is negative, fractional or above 2^32-1 is an error, and so is more than max ids.
func Uint32s(dst []uint32, b []byte, max int) ([]uint32, error) {
	i := Space(b, 0)
	if i >= len(b) || b[i] != '[' {
		return dst, errSyntax
	}
	i = Space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return dst, nil
	}
	for {
		if len(b)-i < 2*(max-len(dst)) && i < len(b) && b[i] != ' ' {
			dst, i = compactUint32s(dst, b, i)
		}
		i = Space(b, i)
		start := i
		var v uint64
		for i < len(b) {
			c := b[i] - '0'
			if c > 9 {
				break
			}
			v = v*10 + uint64(c)
			i++
		}
		if digits := i - start; digits == 0 || digits > 10 || v > 1<<32-1 || len(dst) >= max {
			return dst, errSyntax
		}
		dst = append(dst, uint32(v))
		i = Space(b, i)
		switch {
		case i < len(b) && b[i] == ']':
			return dst, nil
		case i < len(b) && b[i] == ',':
			i++ // a missing number fails above
		default:
			return dst, errSyntax
		}
	}
}

// AppendUint32s appends ids as a JSON list.
func AppendUint32s(dst []byte, ids []uint32) []byte {
	dst = append(slices.Grow(dst, len(ids)*7+2), '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}
