package convert

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// pythonJSON appends the value as Python's json.dumps writes the result of json.loads: ", " and
// ": " between, everything beyond ASCII escaped. It gives up on numbers that are not whole
// (their digits may change) and on names that come twice.
func pythonJSON(dst, v []byte) ([]byte, bool) {
	if len(v) == 0 {
		return dst, false
	}
	switch v[0] {
	case '{':
		return pythonObject(dst, v)
	case '[':
		return pythonList(dst, v)
	case '"':
		s, err := rawjson.Unquote(v)
		if err != nil {
			return dst, false
		}
		return pythonString(dst, s), true
	case 't', 'f', 'n':
		return append(dst, v...), true
	}
	for i, c := range v {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return dst, false
		}
	}
	return append(dst, v...), true
}

func pythonObject(dst, v []byte) ([]byte, bool) {
	dst = append(dst, '{')
	seen := map[string]bool{}
	ok := true
	err := rawjson.Members(v, func(key string, value []byte) bool {
		if seen[key] {
			ok = false
			return false
		}
		if len(seen) > 0 {
			dst = append(dst, ", "...)
		}
		seen[key] = true
		dst = append(pythonString(dst, key), ": "...)
		dst, ok = pythonJSON(dst, value)
		return ok
	})
	return append(dst, '}'), ok && err == nil
}

func pythonList(dst, v []byte) ([]byte, bool) {
	dst = append(dst, '[')
	first, ok := true, true
	err := rawjson.Elements(v, func(value []byte) bool {
		if !first {
			dst = append(dst, ", "...)
		}
		first = false
		dst, ok = pythonJSON(dst, value)
		return ok
	})
	return append(dst, ']'), ok && err == nil
}

func pythonString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\b':
			dst = append(dst, `\b`...)
		case r == '\f':
			dst = append(dst, `\f`...)
		case r >= 0x20 && r < 0x7f:
			dst = append(dst, byte(r))
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, hi, lo)
		case r == 0x7f:
			dst = utf8.AppendRune(dst, r)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return append(dst, '"')
}
