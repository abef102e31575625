package openai

import (
	"slices"
	"strings"
)

// SessionFrom finds the session in headers (or gRPC metadata) by one rule for every entry:
// names are compared without case and with "-" and "_" alike, the first match wins, and an
// empty value is no session. An empty name turns sessions off.
//
// A map has no order: the exact spelling goes first, then the others by their names.
func SessionFrom(headers map[string][]string, name string) string {
	if name == "" || len(headers) == 0 {
		return ""
	}
	var found []string
	for key, values := range headers {
		if len(values) > 0 && sameHeader(key, name) {
			found = append(found, key)
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.SortFunc(found, func(a, b string) int {
		if exactA, exactB := strings.EqualFold(a, name), strings.EqualFold(b, name); exactA != exactB {
			if exactA {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return headers[found[0]][0]
}

// sameHeader compares two header names without case and with "-" and "_" alike.
func sameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if foldHeaderByte(a[i]) != foldHeaderByte(b[i]) {
			return false
		}
	}
	return true
}

func foldHeaderByte(c byte) byte {
	switch {
	case c == '_':
		return '-'
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	}
	return c
}
