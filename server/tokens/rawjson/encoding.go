package rawjson

import "bytes"

var byteOrderMark = []byte("\xEF\xBB\xBF")

// SkipMark returns text without UTF-8's byte order mark at its beginning. Python's json takes it, RFC 8259 allows it.
func SkipMark(text []byte) []byte { return bytes.TrimPrefix(text, byteOrderMark) }

// ForeignEncoding is UTF-16 or UTF-32 if the text is in that, by its byte order mark or by the zeros in its first
// characters, which are ASCII in JSON; else it is empty. Python's json reads both; RFC 8259 and this package do not.
func ForeignEncoding(text []byte) string {
	if len(text) < 2 {
		return ""
	}
	var first [4]byte
	n := copy(first[:], text)
	little := first[0] == 0xFF && first[1] == 0xFE
	switch {
	case n == 4 && little && first[2] == 0 && first[3] == 0,
		n == 4 && first == [4]byte{0, 0, 0xFE, 0xFF},
		n == 4 && first[0] == 0 && first[1] == 0,
		n == 4 && first[1] == 0 && first[2] == 0 && first[3] == 0:
		return "UTF-32"
	case little, first[0] == 0xFE && first[1] == 0xFF, first[0] == 0, first[1] == 0:
		return "UTF-16"
	}
	return ""
}
