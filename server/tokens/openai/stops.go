package openai

import (
	"strconv"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Stops are the strings that end an answer.
type Stops struct {
	// Strings are in the order of the request; none of them is empty.
	Strings []string
	// Included is set when the string that ends an answer is its last text.
	Included bool
	// Least is min_tokens: a string that ends in the text of these first tokens does not count. It is also the request's
	// where there are no strings.
	Least int
}

const (
	// maxStops and maxStop bound the router's search: strings, and characters of one.
	maxStops, maxStop = 32, 1024
)

// Reach is how many characters before the present one may belong to a string that ends there.
func (s *Stops) Reach() int {
	n := 0
	for _, one := range s.Strings {
		n = max(n, utf8.RuneCountInString(one)-1)
	}
	return n
}

// Stops returns the request's stop strings. It returns false when they are not of a form whose meaning in the engine is certain.
func (r *Request) Stops() (s Stops, ok bool) {
	if s.Least, ok = exactCount(r.Raw("min_tokens")); !ok {
		return s, false
	}
	switch raw := r.Raw("stop"); {
	case rawjson.IsNull(raw), string(raw) == `""`:
		return s, true
	case raw[0] == '"':
		ok = s.add(raw)
	case raw[0] == '[':
		err := rawjson.Elements(raw, func(one []byte) bool {
			ok = s.add(one)
			return ok
		})
		ok = ok && err == nil
	default:
		return s, false
	}
	if len(s.Strings) == 0 || !ok {
		return s, ok
	}
	switch string(r.Raw("include_stop_str_in_output")) {
	case "true":
		s.Included = true
	case "false", "null", "":
	default:
		return s, false
	}
	return s, true
}

// add adds a raw JSON string. A lone surrogate, which Python keeps and Go does not, is refused as U+FFFD is.
func (s *Stops) add(raw []byte) bool {
	if len(raw) <= len(`""`) || raw[0] != '"' || len(s.Strings) == maxStops {
		return false
	}
	text := rawjson.TextOf(raw).Copied()
	if n := utf8.RuneCountInString(text); n == 0 || n > maxStop || !utf8.ValidString(text) {
		return false
	}
	for _, c := range text {
		if c == utf8.RuneError {
			return false
		}
	}
	s.Strings = append(s.Strings, text)
	return true
}

// exactCount reads a count in plain digits; null and absent are 0.
func exactCount(raw []byte) (int, bool) {
	if rawjson.IsNull(raw) {
		return 0, true
	}
	switch string(raw) {
	case "0.0", "false", `""`, "[]": // asks for nothing, or the engine rejects it
		return 0, true
	}
	n, err := strconv.ParseUint(string(raw), 10, 31)
	return int(n), err == nil
}
