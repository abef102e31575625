package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a body. Tool schemas stay far below it; the engine's own
// limits are 128 (Rust) and about 1,000 (Python).
const maxDepth = 256

// scanner walks over JSON text. Each method starts at the first byte of what it names and
// leaves pos behind its last one; a false result means that err says why.
type scanner struct {
	data []byte
	pos  int
	// depth counts the containers that members and elements have opened.
	depth int
	// eof is set when the text ended too early, as opposed to being wrong.
	eof  bool
	what string
	// field is the top-level member being read, for errors.
	field string
}

// fail records what is wrong at offset.
func (s *scanner) fail(offset int, what string) bool {
	if s.what == "" {
		s.what, s.pos = what, offset
	}
	return false
}

// end records that the text ended while something was expected.
func (s *scanner) end(what string) bool {
	if s.what == "" {
		s.eof = true
	}
	return s.fail(len(s.data), "the text ends where "+what+" is expected")
}

func (s *scanner) err() *BadRequest { return syntaxAt(s.data, s.pos, s.field, s.what) }

// space advances over white space and returns the byte after it, 0 at the end.
func (s *scanner) space() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// atEnd tells the end of the text from a NUL byte after space returned 0.
func (s *scanner) atEnd() bool { return s.pos >= len(s.data) }

// expect is space followed by the byte c.
func (s *scanner) expect(c byte, what string) bool {
	if s.space() != c {
		if s.atEnd() {
			return s.end(what)
		}
		return s.fail(s.pos, "expected "+what)
	}
	s.pos++
	return true
}

// text is one string literal without its quotes.
type text struct {
	raw     []byte
	escaped bool
	// open is set when the body ended inside the string.
	open bool
}

// str reads a string. On a text that ends inside it, the part that is there is returned with false.
func (s *scanner) str() (text, bool) {
	start := s.pos + 1
	end := bytes.IndexByte(s.data[start:], '"')
	if end < 0 {
		end = len(s.data) - start
	}
	end += start
	escaped := false
	if b := bytes.IndexByte(s.data[start:end], '\\'); b >= 0 {
		var ok bool
		escaped = true
		if end, ok = s.escapes(start + b); !ok {
			return text{raw: untilCut(s.data[start:end], true), escaped: true, open: true}, false
		}
	}
	if end == len(s.data) {
		return text{raw: untilCut(s.data[start:], escaped), escaped: escaped, open: true}, s.end("the end of a string")
	}
	raw := s.data[start:end]
	if bad := badByte(raw); bad >= 0 {
		return text{}, s.failByte(start + bad)
	}
	s.pos = end + 1
	return text{raw: raw, escaped: escaped}, true
}

// escapes checks the escape sequences from i on, up to the string's closing quote, whose
// offset it returns; it is the end of the text when there is none. When a sequence is wrong
// or cut off, its offset is returned with false.
func (s *scanner) escapes(i int) (int, bool) {
	for {
		i = quoteOrEscape(s.data, i)
		if i == len(s.data) || s.data[i] == '"' {
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

func (s *scanner) failByte(offset int) bool {
	if s.data[offset] < 0x20 {
		return s.fail(offset, "control character in a string")
	}
	return s.fail(offset, "invalid UTF-8 in a string")
}

// escape checks the escape sequence at offset and returns its size.
func (s *scanner) escape(offset int) (int, bool) {
	if offset+1 >= len(s.data) {
		return 0, s.end("an escape sequence")
	}
	switch s.data[offset+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, true
	case 'u':
		for i := offset + 2; i < offset+6; i++ {
			if i >= len(s.data) {
				return 0, s.end("an escape sequence")
			}
			if hexValue(s.data[i]) < 0 {
				return 0, s.fail(offset, "invalid \\u escape")
			}
		}
		return 6, true
	}
	return 0, s.fail(offset, "invalid escape")
}

// badByte finds the first byte of a string's inside that Python's json would refuse: a
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

// badByteBeyondASCII goes on at i, from where text may be anything.
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

// badByteSlow goes on at i, character by character.
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
			// Python decodes with "surrogatepass": encoded surrogates are let through.
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
func (s *scanner) number() bool {
	i, d := s.pos, s.data
	if i < len(d) && d[i] == '-' {
		i++
	}
	switch {
	case i >= len(d):
		return s.end("a digit")
	case d[i] == 'I':
		s.pos = i
		return s.word("Infinity")
	case d[i] == '0':
		i++
	case d[i] >= '1' && d[i] <= '9':
		i = digits(d, i)
	default:
		return s.fail(i, "expected a digit")
	}
	if i < len(d) && d[i] == '.' {
		end := digits(d, i+1)
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
		end := digits(d, i)
		if end == i {
			return s.missingDigit(end)
		}
		i = end
	}
	s.pos = i
	return true
}

func (s *scanner) missingDigit(offset int) bool {
	if offset >= len(s.data) {
		return s.end("a digit")
	}
	return s.fail(offset, "expected a digit")
}

func digits(d []byte, i int) int {
	for i < len(d) && d[i]-'0' <= 9 {
		i++
	}
	return i
}

// word reads one of the bare words of JSON, or of Python's json (NaN, Infinity).
func (s *scanner) word(want string) bool {
	rest := s.data[s.pos:]
	if len(rest) < len(want) {
		if string(rest) == want[:len(rest)] {
			return s.end(want)
		}
		return s.fail(s.pos, "unknown word")
	}
	if string(rest[:len(want)]) != want {
		return s.fail(s.pos, "unknown word")
	}
	s.pos += len(want)
	return true
}

// scalar reads a value that is no object and no array, whose first byte is c.
func (s *scanner) scalar(c byte) bool {
	switch c {
	case '"':
		_, ok := s.str()
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
	if s.atEnd() {
		return s.end("a value")
	}
	return s.fail(s.pos, "expected a value")
}
