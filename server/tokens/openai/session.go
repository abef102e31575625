package openai

import (
	"strconv"
	"strings"
	"time"
)

// maxSession bounds a session's name in bytes; a longer one is no session.
const maxSession = 512

// The header of Claude Code that names its session, and the header that names the agent within it.
const (
	headerClaudeSession = "x-claude-code-session-id"
	headerClaudeAgent   = "x-claude-code-agent-id"
)

const (
	// headerReturn says in how many milliseconds the session's next request is expected.
	headerReturn = "x-kvpilot-session-return-ms"
	// maxReturn bounds that time.
	maxReturn = 24 * time.Hour
	// minFinal is the length of the shortest of these headers.
	minFinal = len("x-dynamo-session-final")
)

// finalHeaders mark the last request of a session.
var finalHeaders = [...]string{"x-kvpilot-session-final", "x-dynamo-session-final"}

// SessionFrom finds the session in headers (or gRPC metadata), and the name of the header that has it: the first of
// names wins, whatever the order of the headers. Header names are compared without case and with "-" and "_" alike, and
// an exact spelling goes before others. An empty value is no session.
//
// Claude Code's subagents have a conversation each, so the session has the agent's name too.
func SessionFrom(headers map[string][]string, names []string) (session, name string) {
	best, exact, key := len(names), false, ""
	for header, values := range headers {
		if len(values) == 0 || values[0] == "" || len(values[0]) > maxSession {
			continue
		}
		for at, candidate := range names[:min(best+1, len(names))] {
			if !sameHeader(header, candidate) {
				continue
			}
			spelled := strings.EqualFold(header, candidate)
			// A map has no order: of two other spellings the first by name wins.
			if at < best || spelled && !exact || spelled == exact && header < key {
				best, exact, key = at, spelled, header
			}
			break
		}
	}
	if best == len(names) {
		return "", ""
	}
	session = headers[key][0]
	if sameHeader(key, headerClaudeSession) {
		if agent := valueOf(headers, headerClaudeAgent); agent != "" && len(session)+len(agent) < maxSession {
			session += "/" + agent
		}
	}
	return session, names[best]
}

// SessionReturn reads in how long the session's next request is expected (0 when the headers do not say it), and whether the
// request is marked as the session's last one. A value that cannot be read is not said.
func SessionReturn(headers map[string][]string) (wait time.Duration, ends bool) {
	for header, values := range headers {
		if len(values) == 0 || len(header) < minFinal {
			continue
		}
		if sameHeader(header, headerReturn) {
			if ms, err := strconv.ParseUint(values[0], 10, 32); err == nil {
				wait = min(time.Duration(ms)*time.Millisecond, maxReturn)
			}
			continue
		}
		for _, name := range finalHeaders {
			if sameHeader(header, name) {
				last, err := strconv.ParseBool(values[0])
				ends = ends || err == nil && last
			}
		}
	}
	return wait, ends
}

// valueOf is a header's first value, whatever the spelling of its name.
func valueOf(headers map[string][]string, name string) string {
	for header, values := range headers {
		if len(values) > 0 && sameHeader(header, name) {
			return values[0]
		}
	}
	return ""
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
