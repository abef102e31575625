package rawjson

import (
	"bytes"
	"errors"
	"fmt"
)

// errSyntax says that the text is not the JSON that was expected.
var errSyntax = errors.New("malformed JSON")

// Space returns the index of the first byte at or after i that is not white space.
func Space(b []byte, i int) int {
	s := Scanner{Data: b, Pos: i}
	s.Space()
	return s.Pos
}

// Trusted is a Scanner that does not check the bytes of strings, for text that was read before, or of a replica.
func Trusted(b []byte) Scanner { return Scanner{Data: b, lax: true} }

// Err says what was wrong once a method returned false; nil when a visitor stopped.
func (s *Scanner) Err() error {
	if s.What == "" {
		return nil
	}
	return fmt.Errorf("%w at byte %d: %s", errSyntax, s.Pos, s.What)
}

// Members calls visit with each member of the object in b, in order, and stops when visit returns false. The key
// is decoded, the value is raw and shares memory with b. Text behind the object is ignored. The bytes of strings in
// values are not checked.
func Members(b []byte, visit func(key string, value []byte) bool) error {
	s := Scanner{Data: b, lax: true}
	if s.Space() != '{' {
		return errSyntax
	}
	return s.walked(s.members(func(name Text, _ int) bool {
		from := s.Pos
		return s.Skip() && visit(name.Copied(), b[from:s.Pos])
	}))
}

// Elements calls visit with each raw element of the list in b and stops when visit returns false. Text behind the list is ignored.
// The bytes of strings are not checked.
func Elements(b []byte, visit func(value []byte) bool) error {
	s := Scanner{Data: b, lax: true}
	if s.Space() != '[' {
		return errSyntax
	}
	return s.walked(s.Elements(func(int) bool {
		from := s.Pos
		return s.Skip() && visit(b[from:s.Pos])
	}))
}

// walked is the error of a walk; a visitor that stopped is none.
func (s *Scanner) walked(ok bool) error {
	if !ok && s.What != "" {
		return errSyntax
	}
	return nil
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
		return "", errSyntax
	}
	inner := b[1 : len(b)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	s := Scanner{Data: b}
	t, ok := s.Text()
	if !ok || s.Pos != len(b) {
		return "", errSyntax
	}
	return t.Copied(), nil
}
