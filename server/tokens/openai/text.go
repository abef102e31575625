package openai

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// bytes gives the string's content; it shares memory with the body when nothing was escaped.
func (t text) bytes() []byte {
	if !t.escaped {
		return t.raw
	}
	return unescape(t.raw)
}

// copied gives the content as a string of its own, for values that outlive the body.
func (t text) copied() string { return string(t.bytes()) }

// shared gives the content as a string that may share memory with the body.
func (t text) shared() string {
	b := t.bytes()
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b)) // the body does not change after Read
}

// unescape decodes the inside of a string that the scanner has accepted. Lone surrogates
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

// unescapeRune decodes what follows `\u`, a surrogate pair included. It is -1 when raw ends too early.
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

// appendQuoted writes s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		i++
	}
	return append(dst, '"')
}
