package enginestats

import (
	"bytes"
	"math"
	"strconv"
)

// sample splits a line `name{labels} value ...` without allocating. It is not ok for comments,
// empty lines, values that are not finite, and names that keep does not want.
func sample(line []byte, keep func(name []byte) bool) (name, labels []byte, value float64, ok bool) {
	end := 0
	for end < len(line) && line[end] != '{' && line[end] != ' ' && line[end] != '\t' {
		end++
	}
	if end == 0 || end == len(line) || !keep(line[:end]) {
		return nil, nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		closing := labelsEnd(rest)
		if closing < 0 {
			return nil, nil, 0, false
		}
		labels, rest = rest[1:closing], rest[closing+1:]
	}
	rest = bytes.TrimLeft(rest, " \t")
	if end := bytes.IndexAny(rest, " \t"); end >= 0 { // a timestamp or an exemplar follows
		rest = rest[:end]
	}
	value, err := strconv.ParseFloat(string(rest), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return nil, nil, 0, false
	}
	return name, labels, value, true
}

// labelsEnd finds the brace that closes a label list which begins at text[0]; -1: none.
func labelsEnd(text []byte) int {
	quoted := false
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// label returns the value of one label of a list `a="x",b="y"`.
func label(list []byte, name string) (value []byte, ok bool) {
	for len(list) > 0 {
		key, rest, found := bytes.Cut(list, []byte(`="`))
		if !found {
			return nil, false
		}
		end, escaped := valueEnd(rest)
		if end < 0 {
			return nil, false
		}
		if string(bytes.TrimSpace(key)) == name {
			if escaped {
				return unescape(rest[:end]), true
			}
			return rest[:end], true
		}
		list = bytes.TrimLeft(rest[end+1:], ", \t")
	}
	return nil, false
}

func valueEnd(text []byte) (end int, escaped bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			return i, escaped
		}
	}
	return -1, escaped
}

func unescape(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			if c = text[i]; c == 'n' {
				c = '\n'
			}
		}
		out = append(out, c)
	}
	return out
}
