package httpcall

import (
	"maps"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// DialectOf is the form of errors below a path: Anthropic's below /v1/messages, OpenAI's elsewhere, whose responses are streams of
// their own kind.
func DialectOf(path string) apierror.Dialect {
	switch {
	case below(path, "/v1/messages"):
		return apierror.Anthropic
	case below(path, "/v1/responses"):
		return apierror.OpenAIResponses
	}
	return apierror.OpenAI
}

// below reports whether path is root or under it.
func below(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && (rest == "" || rest[0] == '/')
}

// SetErrorHeaders sets the headers that go with an error: reason, retry hints, authentication and upgrade.
func SetErrorHeaders(h http.Header, e *apierror.Error) {
	h.Set("X-Kvpilot-Reason", apierror.Name(e.Reason))
	if after := e.RetryAfterHeader(); after != "" {
		h.Set("Retry-After", after)
		h.Set("Retry-After-Ms", e.RetryAfterMS())
	}
	maps.Copy(h, e.Header)
	if e.Reason == apierror.Unauthenticated {
		h.Set("Www-Authenticate", "Bearer")
	}
	if protocol := e.Upgrade(); protocol != "" {
		h.Set("Upgrade", protocol)
		h.Set("Connection", "Upgrade")
	}
	h.Del("Cache-Control")
}
