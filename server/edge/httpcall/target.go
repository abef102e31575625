package httpcall

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// The errors of a request's target say what is wrong and what to send instead.
var (
	errBytes  = errors.New("the path or the query has a space or a control character: escape it (%20)")
	errNoPath = errors.New("the path must begin with one slash and have no host")
	errDots   = errors.New("the path has a segment that is empty, . or ..: send the path that it stands for")
	errEscape = errors.New("the path has an ambiguous escape: letters, digits, dots, slashes, percent signs and control characters must not be escaped")
	errQuery  = errors.New("the query must not contain #")
	errID     = errors.New("must not be empty, . or .., or contain slashes, backslashes or control characters")
)

// CheckBytes reports a target that cannot stand in a request line. text is a path, a query, or both.
func CheckBytes(text string) error {
	if !http1.ValidTarget(text) {
		return errBytes
	}
	return nil
}

// CheckPath reports an escaped path that two servers may read as two paths. The path of a known route needs no such check: it
// is forwarded as the route's own.
func CheckPath(path string) error {
	switch {
	case !http1.ValidTarget(path):
		return errBytes
	case path == "" || path[0] != '/', strings.ContainsAny(path, "\\?#"):
		return errNoPath
	}
	for i, segment := range strings.Split(path[1:], "/") {
		name, _, _ := strings.Cut(segment, ";") // some servers drop a segment's parameters
		if name == "." || name == ".." || segment == "" && i < strings.Count(path[1:], "/") {
			return errDots
		}
	}
	return checkEscapes(path)
}

// checkEscapes rejects escapes that some servers decode before they look at the path, and bytes that are no text.
func checkEscapes(path string) error {
	if !strings.Contains(path, "%") {
		if !utf8.ValidString(path) {
			return errEscape
		}
		return nil
	}
	plain := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' {
			if i+2 >= len(path) || unhex(path[i+1]) < 0 || unhex(path[i+2]) < 0 {
				return errEscape
			}
			c = byte(unhex(path[i+1])<<4 | unhex(path[i+2]))
			if i += 2; c <= 0x1f || c == 0x7f || unreserved(c) || strings.IndexByte("/\\%?#;", c) >= 0 {
				return errEscape
			}
		}
		plain = append(plain, c)
	}
	if !utf8.Valid(plain) { // an overlong form of a slash, for example
		return errEscape
	}
	return nil
}

// unreserved reports bytes that need no escape anywhere, by RFC 3986.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// CheckQuery reports a query that cannot be forwarded.
func CheckQuery(query string) error {
	if strings.Contains(query, "#") {
		return errQuery
	}
	return CheckBytes(query)
}

// CheckID reports an id that would be more than one segment of a path, or another one.
func CheckID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\\") || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errID
	}
	return nil
}
