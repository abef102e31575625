package rawjson

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// TextOf is the Text of a string literal that was scanned before.
func TextOf(literal []byte) Text {
	inner := literal[1 : len(literal)-1]
	return Text{Raw: inner, escaped: bytes.IndexByte(inner, '\\') >= 0}
}

// Bytes gives the string's content; it shares memory with the scanned text when nothing was escaped.
func (t Text) Bytes() []byte {
	if !t.escaped {
		return t.Raw
	}
	return unescape(t.Raw)
}

// Copied gives the content as a string of its own, for values that outlive the scanned text.
func (t Text) Copied() string { return string(t.Bytes()) }

// Shared gives the content as a string that may share memory with the scanned text.
func (t Text) Shared() string {
	b := t.Bytes()
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b)) // the scanned text does not change
}

// unescape decodes the inside of a string that the Scanner has accepted. Lone surrogates
// become U+FFFD. A sequence cut off by the end of a truncated body is left out.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 || n+1 >= len(raw) {
			if n >= 0 {
				raw = raw[:n]
			}
			return append(out, raw...)
		}
		out = append(out, raw[:n]...)
		c := raw[n+1]
		raw = raw[n+2:]
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			var r rune
			if r, raw = unescapeRune(raw); r < 0 {
				return out
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
}

// unescapeRune decodes the digits behind `\u`, a surrogate pair included. It is -1 when raw ends too early.
func unescapeRune(raw []byte) (rune, []byte) {
	r := hexRune(raw)
	if r < 0 {
		return -1, nil
	}
	raw = raw[4:]
	if !utf16.IsSurrogate(r) {
		return r, raw
	}
	if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
		if pair := utf16.DecodeRune(r, hexRune(raw[2:])); pair != utf8.RuneError {
			return pair, raw[6:]
		}
	}
	return utf8.RuneError, raw
}

func hexRune(raw []byte) rune {
	if len(raw) < 4 {
		return -1
	}
	var r rune
	for _, c := range raw[:4] {
		v := hexValue(c)
		if v < 0 {
			return -1
		}
		r = r<<4 | rune(v)
	}
	return r
}

func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// untilCut is the part of a string's raw inside that can be relied on when the text ended in it: up to the
// first byte that is no text, and without half a character at its end.
func untilCut(raw []byte, escaped bool) []byte {
	if bad := badByte(raw); bad >= 0 {
		raw = raw[:bad]
	}
	if n := len(raw) - len(`\ud800`); escaped && n >= 0 && highSurrogate(raw[n:]) && !escapedAt(raw, n) {
		raw = raw[:n]
	}
	return raw
}

// highSurrogate reports whether raw is the escape of the first half of a character.
func highSurrogate(raw []byte) bool {
	return raw[0] == '\\' && raw[1] == 'u' && hexRune(raw[2:]) >= 0xD800 && hexRune(raw[2:]) < 0xDC00
}

// escapedAt reports whether the byte at i belongs to an escape sequence that began before it.
func escapedAt(raw []byte, i int) bool {
	n := 0
	for i > 0 && raw[i-1] == '\\' {
		i, n = i-1, n+1
	}
	return n%2 == 1
}

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
