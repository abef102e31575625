package rawjson

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a body. Tool schemas stay far below it; the engine's own
// limits are 128 (Rust) and about 1,000 (Python).
const maxDepth = 256

// Scanner walks over JSON text. Each method starts at the first byte of the part that it names and
// leaves Pos behind its last one; a false result means that What says why.
type Scanner struct {
	Data []byte
	Pos  int
	// EOF is set when the text ended too early, as opposed to being wrong.
	EOF bool
	// What says what is wrong at Pos, once a method returned false; empty when a visitor stopped.
	What string

	// depth counts the containers that Members and Elements have opened.
	depth int
	// lax leaves the bytes of strings unchecked: only their end counts.
	lax bool
}

// Fail records a fault at offset.
func (s *Scanner) Fail(offset int, what string) bool {
	if s.What == "" {
		s.What, s.Pos = what, offset
	}
	return false
}

// end records that the text ended while something was expected.
func (s *Scanner) end(what string) bool {
	if s.What == "" {
		s.EOF = true
	}
	return s.Fail(len(s.Data), "the text ends, but "+what+" is expected")
}

// Space advances over white space and returns the byte after it, 0 at the end.
func (s *Scanner) Space() byte {
	for s.Pos < len(s.Data) {
		switch c := s.Data[s.Pos]; c {
		case ' ', '\n', '\r', '\t':
			s.Pos++
		default:
			return c
		}
	}
	return 0
}

// AtEnd reports whether the 0 that Space returned is the end of the text and no NUL byte.
func (s *Scanner) AtEnd() bool { return s.Pos >= len(s.Data) }

// expect is Space followed by the byte c.
func (s *Scanner) expect(c byte, what string) bool {
	if s.Space() != c {
		if s.AtEnd() {
			return s.end(what)
		}
		return s.Fail(s.Pos, "expected "+what)
	}
	s.Pos++
	return true
}

// Text is one string literal without its quotes.
type Text struct {
	Raw     []byte
	escaped bool
	// Open is set when the text ended inside the string.
	Open bool
}

// Text reads a string. On a text that ends inside it, the part that is there is returned with false.
func (s *Scanner) Text() (Text, bool) {
	start := s.Pos + 1
	end := bytes.IndexByte(s.Data[start:], '"')
	if end < 0 {
		end = len(s.Data) - start
	}
	end += start
	escaped := false
	if b := bytes.IndexByte(s.Data[start:end], '\\'); b >= 0 {
		var ok bool
		escaped = true
		if end, ok = s.escapes(start + b); !ok {
			return Text{Raw: untilCut(s.Data[start:end], true), escaped: true, Open: true}, false
		}
	}
	if end == len(s.Data) {
		return Text{Raw: untilCut(s.Data[start:], escaped), escaped: escaped, Open: true}, s.end("the end of a string")
	}
	raw := s.Data[start:end]
	if !s.lax {
		if bad := badByte(raw); bad >= 0 {
			return Text{}, s.failByte(start + bad)
		}
	}
	s.Pos = end + 1
	return Text{Raw: raw, escaped: escaped}, true
}

// escapes checks the escape sequences from i on, up to the string's closing quote, and
// returns its offset, or the end of the text when there is none. When a sequence is wrong
// or cut off, its offset is returned with false.
func (s *Scanner) escapes(i int) (int, bool) {
	for {
		i = quoteOrEscape(s.Data, i)
		if i == len(s.Data) || s.Data[i] == '"' {
			return i, true
		}
		size, ok := s.escape(i)
		if !ok {
			return i, false
		}
		i += size
	}
}

// quoteOrEscape finds the first quote or backslash from i on; it is len(b) when there is none.
func quoteOrEscape(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		q, e := w^('"'*ones), w^('\\'*ones)
		// The lowest bit that is set here belongs to the first byte that is zero in q or e.
		if hit := ((q-ones)&^q | (e-ones)&^e) & highs; hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(b); i++ {
		if b[i] == '"' || b[i] == '\\' {
			return i
		}
	}
	return i
}

func (s *Scanner) failByte(offset int) bool {
	if s.Data[offset] < 0x20 {
		return s.Fail(offset, "control character in a string")
	}
	return s.Fail(offset, "invalid UTF-8 in a string")
}

// escape checks the escape sequence at offset and returns its size.
func (s *Scanner) escape(offset int) (int, bool) {
	if offset+1 >= len(s.Data) {
		return 0, s.end("an escape sequence")
	}
	switch s.Data[offset+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, true
	case 'u':
		for i := offset + 2; i < offset+6; i++ {
			if i >= len(s.Data) {
				return 0, s.end("an escape sequence")
			}
			if hexValue(s.Data[i]) < 0 {
				return 0, s.Fail(offset, "invalid \\u escape")
			}
		}
		return 6, true
	}
	return 0, s.Fail(offset, "invalid escape")
}

// badByte finds the first byte of a string's inside that Python's json would reject: a
// control character, or bytes that are no UTF-8. It is -1 when there is none.
func badByte(b []byte) int {
	const lows, highs = 0x2020202020202020, 0x8080808080808080
	rest := b
	for len(rest) >= 64 {
		w := (*[64]byte)(rest)
		w0, w1, w2, w3 := word(w[0:8]), word(w[8:16]), word(w[16:24]), word(w[24:32])
		w4, w5, w6, w7 := word(w[32:40]), word(w[40:48]), word(w[48:56]), word(w[56:64])
		// A byte below 0x20 borrows into its top bit; one from 0x80 on has it already.
		low := (w0 - lows) | (w1 - lows) | (w2 - lows) | (w3 - lows) | (w4 - lows) | (w5 - lows) | (w6 - lows) | (w7 - lows)
		if (low|w0|w1|w2|w3|w4|w5|w6|w7)&highs != 0 {
			return badByteBeyondASCII(b, len(b)-len(rest))
		}
		rest = rest[64:]
	}
	for ; len(rest) >= 8; rest = rest[8:] {
		if w := word(rest); ((w-lows)|w)&highs != 0 {
			return badByteBeyondASCII(b, len(b)-len(rest))
		}
	}
	for i, c := range rest {
		if c < 0x20 || c >= utf8.RuneSelf {
			return badByteBeyondASCII(b, len(b)-len(rest)+i)
		}
	}
	return -1
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// badByteBeyondASCII continues at i, from where text may be anything.
func badByteBeyondASCII(b []byte, i int) int {
	const lows, highs = 0x2020202020202020, 0x8080808080808080
	control := false
	j := i
	for ; j+8 <= len(b) && !control; j += 8 {
		w := binary.LittleEndian.Uint64(b[j:])
		control = (w-lows)&^w&highs != 0
	}
	for ; j < len(b) && !control; j++ {
		control = b[j] < 0x20
	}
	if !control && utf8.Valid(b[i:]) {
		return -1
	}
	return badByteSlow(b, i)
}

// badByteSlow continues at i, character by character.
func badByteSlow(b []byte, i int) int {
	for i < len(b) {
		if b[i] < 0x20 {
			return i
		}
		if b[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			// Python decodes with "surrogatepass": encoded surrogates pass.
			if !encodedSurrogate(b[i:]) {
				return i
			}
			size = 3
		}
		i += size
	}
	return -1
}

func encodedSurrogate(b []byte) bool {
	return len(b) >= 3 && b[0] == 0xED && b[1] >= 0xA0 && b[1] <= 0xBF && b[2]&0xC0 == 0x80
}

// number reads a number by JSON's grammar.
func (s *Scanner) number() bool {
	i, d := s.Pos, s.Data
	if i < len(d) && d[i] == '-' {
		i++
	}
	switch {
	case i >= len(d):
		return s.end("a digit")
	case d[i] == 'I':
		s.Pos = i
		return s.word("Infinity")
	case d[i] == '0':
		i++
	case d[i] >= '1' && d[i] <= '9':
		i = Digits(d, i)
	default:
		return s.Fail(i, "expected a digit")
	}
	if i < len(d) && d[i] == '.' {
		end := Digits(d, i+1)
		if end == i+1 {
			return s.missingDigit(end)
		}
		i = end
	}
	if i < len(d) && d[i]|0x20 == 'e' {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		end := Digits(d, i)
		if end == i {
			return s.missingDigit(end)
		}
		i = end
	}
	s.Pos = i
	return true
}

func (s *Scanner) missingDigit(offset int) bool {
	if offset >= len(s.Data) {
		return s.end("a digit")
	}
	return s.Fail(offset, "expected a digit")
}

// Digits returns the index of the first byte at or after i that is no digit.
func Digits(d []byte, i int) int {
	for i < len(d) && d[i]-'0' <= 9 {
		i++
	}
	return i
}

// word reads one of the bare words of JSON, or of Python's json (NaN, Infinity).
func (s *Scanner) word(want string) bool {
	rest := s.Data[s.Pos:]
	if len(rest) < len(want) {
		if string(rest) == want[:len(rest)] {
			return s.end(want)
		}
		return s.Fail(s.Pos, "unknown word")
	}
	if string(rest[:len(want)]) != want {
		return s.Fail(s.Pos, "unknown word")
	}
	s.Pos += len(want)
	return true
}

// scalar reads a value that begins with c and is neither an object nor an array.
func (s *Scanner) scalar(c byte) bool {
	switch c {
	case '"':
		if s.lax {
			return s.skipString()
		}
		_, ok := s.Text()
		return ok
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	case 'N':
		return s.word("NaN")
	case 'I':
		return s.word("Infinity")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return s.number()
	}
	if s.AtEnd() {
		return s.end("a value")
	}
	return s.Fail(s.Pos, "expected a value")
}

// skipString finds the end of a string.
func (s *Scanner) skipString() bool {
	first := s.Pos + 1
	for from := first; ; {
		n := bytes.IndexByte(s.Data[from:], '"')
		if n < 0 {
			return s.end("the end of a string")
		}
		end := from + n
		if !escapedAt(s.Data[first:], end-first) {
			s.Pos = end + 1
			return true
		}
		from = end + 1
	}
}
