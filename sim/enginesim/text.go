package enginesim

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// text is JSON while it is written. Answers are written by hand, because a simulator of many replicas spends most of
// its time on chunks, and because their members differ between versions in more than tags can say.
type text []byte

// raw appends s as it is.
func (b text) raw(s string) text { return append(b, s...) }

// str appends s as a string; bytes that are no UTF-8 become the replacement character.
func (b text) str(s string) text { return quote(b, s) }

// int appends a number.
func (b text) int(n int) text { return strconv.AppendInt(b, int64(n), 10) }

// float appends a number with at most six decimals.
func (b text) float(f float64) text {
	return strconv.AppendFloat(b, math.Round(f*1e6)/1e6, 'f', -1, 64)
}

// strOrNull appends a string, null when it is empty.
func (b text) strOrNull(s string) text {
	if s == "" {
		return b.raw("null")
	}
	return b.str(s)
}

// stop appends a stop reason: nil, a string or an id.
func (b text) stop(v any) text {
	switch v := v.(type) {
	case string:
		return b.str(v)
	case int64:
		return b.int(int(v))
	}
	return b.raw("null")
}

// ids appends token ids, null unless the request asked for them.
func (b text) ids(asked bool, ids []uint32) text {
	if !asked {
		return b.raw("null")
	}
	return b.list(len(ids), '[', ']', func(b text, i int) text { return b.int(int(ids[i])) })
}

// list appends n items between two brackets.
func (b text) list(n int, open, end byte, item func(b text, i int) text) text {
	b = append(b, open)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, i)
	}
	return append(b, end)
}

// quote appends s as a JSON string; bytes that are no UTF-8 become the replacement character.
func quote[T ~string | ~[]byte](b []byte, s T) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the error reports those bytes; the string is whole all the same
	return b
}
