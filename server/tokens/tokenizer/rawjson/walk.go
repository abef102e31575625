package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrSyntax says that the text is not the JSON that was expected.
var ErrSyntax = errors.New("malformed JSON")

// maxDepth bounds nesting, so that an answer of brackets costs nothing.
const maxDepth = 512

// Space returns the index of the first byte at or after i that is not white space.
func Space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// Skip returns the index just behind the value that starts at i.
func Skip(b []byte, i int) (int, error) {
	if i >= len(b) {
		return i, ErrSyntax
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '{' || c == '[':
		return skipNested(b, i)
	case c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'N' || c == 'I':
		for i < len(b) && !isEnd(b[i]) {
			i++
		}
		return i, nil
	}
	return i, ErrSyntax
}

func isEnd(c byte) bool {
	return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '"' || c == ':'
}

// skipString returns the index behind the string that starts at i.
func skipString(b []byte, i int) (int, error) {
	from := i + 1
	for {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return len(b), ErrSyntax
		}
		end := from + n
		back := end
		for back > i+1 && b[back-1] == '\\' {
			back--
		}
		if (end-back)%2 == 0 {
			return end + 1, nil
		}
		from = end + 1
	}
}

// skipNested returns the index behind the object or list that starts at i.
func skipNested(b []byte, i int) (int, error) {
	var stack [maxDepth]byte
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			end, err := skipString(b, i)
			if err != nil {
				return end, err
			}
			i = end
			continue
		case '{', '[':
			if depth == maxDepth {
				return i, ErrSyntax
			}
			stack[depth] = b[i] + 2 // '{'+2 is '}', '['+2 is ']'
			depth++
		case '}', ']':
			depth--
			if b[i] != stack[depth] {
				return i, ErrSyntax
			}
			if depth == 0 {
				return i + 1, nil
			}
		}
		i++
	}
	return i, ErrSyntax
}

// Members calls visit with each member of the object in b, in order, and stops when visit
// returns false. The key is decoded, the value is raw. What follows the object is ignored.
func Members(b []byte, visit func(key string, value []byte) bool) error {
	i := Space(b, 0)
	if i >= len(b) || b[i] != '{' {
		return ErrSyntax
	}
	i = Space(b, i+1)
	if i < len(b) && b[i] == '}' {
		return nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return ErrSyntax
		}
		end, err := skipString(b, i)
		if err != nil {
			return err
		}
		key, err := Unquote(b[i:end])
		if err != nil {
			return err
		}
		i = Space(b, end)
		if i >= len(b) || b[i] != ':' {
			return ErrSyntax
		}
		i = Space(b, i+1)
		if end, err = Skip(b, i); err != nil {
			return err
		}
		if !visit(key, b[i:end]) {
			return nil
		}
		i = Space(b, end)
		if i >= len(b) || (b[i] != ',' && b[i] != '}') {
			return ErrSyntax
		}
		if b[i] == '}' {
			return nil
		}
		i = Space(b, i+1)
	}
}

// Elements calls visit with each raw element of the list in b and stops when visit returns false.
func Elements(b []byte, visit func(value []byte) bool) error {
	i := Space(b, 0)
	if i >= len(b) || b[i] != '[' {
		return ErrSyntax
	}
	i = Space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return nil
	}
	for {
		end, err := Skip(b, i)
		if err != nil {
			return err
		}
		if !visit(b[i:end]) {
			return nil
		}
		i = Space(b, end)
		if i >= len(b) || (b[i] != ',' && b[i] != ']') {
			return ErrSyntax
		}
		if b[i] == ']' {
			return nil
		}
		i = Space(b, i+1)
	}
}

// Member returns the raw value of the last member called name, or nil.
func Member(b []byte, name string) []byte {
	var found []byte
	_ = Members(b, func(key string, value []byte) bool { // a malformed rest cannot hold a later member
		if key == name {
			found = value
		}
		return true
	})
	return found
}

// IsNull reports whether the raw value is absent or null.
func IsNull(v []byte) bool { return len(v) == 0 || string(v) == "null" }

// Unquote decodes a raw JSON string.
func Unquote(b []byte) (string, error) {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return "", ErrSyntax
	}
	inner := b[1 : len(b)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return "", ErrSyntax
	}
	return s, nil
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte {
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
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
