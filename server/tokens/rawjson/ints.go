package rawjson

import (
	"bytes"
	"slices"
	"strconv"
)

// IDs reads a list of integers, which has as much memory as it needs. A number that is negative, fractional or above 2^32-1
// is an error, and so is more than max ids.
func (s *Scanner) IDs(max int) ([]uint32, bool) {
	if s.Space() != '[' {
		return nil, s.Fail(s.Pos, "expected a list of integers")
	}
	list := s.Data[s.Pos+1:]
	end := bytes.IndexByte(list, ']')
	if end < 0 {
		return nil, s.end("']'")
	}
	list = list[:end+1]
	ids, read, ok := uint32s(make([]uint32, 0, min(bytes.Count(list, []byte{','})+1, max)), list, max)
	if !ok {
		return ids, s.Fail(s.Pos+1+read, "expected a list of at most "+strconv.Itoa(max)+" integers from 0 to 2^32-1")
	}
	s.Pos += 1 + read
	return ids, true
}

// uint32s appends the integers of the list in b, of which the bracket was read, to dst. It returns where it ended: behind the list
// when the list is correct.
func uint32s(dst []uint32, b []byte, max int) ([]uint32, int, bool) {
	i := Space(b, 0)
	if i < len(b) && b[i] == ']' {
		return dst, i + 1, true
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
			return dst, i, false
		}
		dst = append(dst, uint32(v))
		i = Space(b, i)
		switch {
		case i < len(b) && b[i] == ']':
			return dst, i + 1, true
		case i < len(b) && b[i] == ',':
			i++ // a missing number fails above
		default:
			return dst, i, false
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
