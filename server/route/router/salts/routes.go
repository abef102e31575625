package salts

import (
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Support is the use that a route makes of a cache_salt.
type Support uint8

const (
	// Taken: the engine keeps blocks of other salts apart.
	Taken Support = iota
	// Missing: the engine computes blocks and has no such field.
	Missing
	// Needless: no block is computed.
	Needless
)

// On is the use that a route at a path makes of it. docs/security.md has the versions of vLLM.
func On(route openai.Route, path string) Support {
	path = strings.TrimSuffix(path, "/")
	switch route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return Needless
	case openai.RouteTranscriptions, openai.RouteTranslations:
		return Missing
	case openai.RouteEmbeddings:
		if path == "/v2/embed" {
			return Missing
		}
	case openai.RouteOther:
		switch path {
		case "/v1/chat/completions/batch", "/inference/v1/generate", "/v1/decisions", "/generative_scoring":
			return Taken
		}
		if strings.HasSuffix(path, "/render") || strings.HasSuffix(path, "/derender") || path == "/tokenizer_info" {
			return Needless
		}
		return Missing
	default:
	}
	return Taken
}

// Ignored reports whether vLLM of a version ignores a cache_salt on a route at a path that takes one in later versions.
func Ignored(version string, route openai.Route, path string) bool {
	return olderThan(version, since(route, path))
}

// since is the first 0.x version of vLLM that is known to take a cache_salt on the route; 0 is any.
func since(route openai.Route, path string) int {
	switch route {
	case openai.RouteAny, openai.RouteChat, openai.RouteCompletions, openai.RouteResponses:
		return 0
	default:
		if strings.HasSuffix(path, "/generate") {
			return 0
		}
		return 32 // 0.12 has none on these, and one between did not have them all
	}
}

// olderThan reports whether a version is 0.x with a smaller x; one that cannot be read is not.
func olderThan(version string, minor int) bool {
	rest, ok := strings.CutPrefix(version, "0.")
	if !ok {
		return false
	}
	text, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(text)
	return err == nil && n < minor && !strings.Contains(version, "dev")
}
