package openai

import "strings"

// Route is an engine route that kvpilot knows by name.
type Route uint8

// The routes.
const (
	// RouteAny is a body of an unknown route: messages, prompt or input decide what it is.
	RouteAny Route = iota
	RouteChat
	RouteCompletions
	RouteResponses
	RouteMessages
	RouteCountTokens
	RouteEmbeddings
	RouteRerank
	RouteScore
	RouteClassify
	RoutePooling
	RouteTranscriptions
	RouteTranslations
	RouteTokenize
	RouteDetokenize
	// RouteRealtime is a WebSocket, without a body.
	RouteRealtime
	// RouteOther is a path that a pool may know and kvpilot does not.
	RouteOther
)

// routeInfo has the fixed facts about a route.
type routeInfo struct {
	name string
	path string
}

// info is the one table of routes.
func (r Route) info() routeInfo {
	switch r {
	case RouteAny:
		return routeInfo{"any", ""}
	case RouteChat:
		return routeInfo{"chat", "/v1/chat/completions"}
	case RouteCompletions:
		return routeInfo{"completions", "/v1/completions"}
	case RouteResponses:
		return routeInfo{"responses", "/v1/responses"}
	case RouteMessages:
		return routeInfo{"messages", "/v1/messages"}
	case RouteCountTokens:
		return routeInfo{"count_tokens", "/v1/messages/count_tokens"}
	case RouteEmbeddings:
		return routeInfo{"embeddings", "/v1/embeddings"}
	case RouteRerank:
		return routeInfo{"rerank", "/v1/rerank"}
	case RouteScore:
		return routeInfo{"score", "/v1/score"}
	case RouteClassify:
		return routeInfo{"classify", "/classify"}
	case RoutePooling:
		return routeInfo{"pooling", "/pooling"}
	case RouteTranscriptions:
		return routeInfo{"transcriptions", "/v1/audio/transcriptions"}
	case RouteTranslations:
		return routeInfo{"translations", "/v1/audio/translations"}
	case RouteTokenize:
		return routeInfo{"tokenize", "/tokenize"}
	case RouteDetokenize:
		return routeInfo{"detokenize", "/detokenize"}
	case RouteRealtime:
		return routeInfo{"realtime", "/v1/realtime"}
	case RouteOther:
	}
	return routeInfo{"other", ""}
}

// String gives the route in the form that metrics and logs use.
func (r Route) String() string { return r.info().name }

// Path is the engine's path for the route; empty for RouteAny and RouteOther.
func (r Route) Path() string { return r.info().path }

// Generates reports whether the engine produces tokens on the route, so that the prompt's
// place in its KV cache matters.
func (r Route) Generates() bool {
	switch r {
	case RouteAny, RouteChat, RouteCompletions, RouteResponses, RouteMessages:
		return true
	default:
		return false
	}
}

// TakesForm reports whether the route's body is a multipart form with a file.
func (r Route) TakesForm() bool { return r == RouteTranscriptions || r == RouteTranslations }

// RouteOf names the route of a path such as "/v1/chat/completions"; RouteOther when unknown.
func RouteOf(path string) Route {
	path = strings.TrimSuffix(path, "/")
	switch path {
	case "/rerank", "/v2/rerank":
		return RouteRerank
	case "/score":
		return RouteScore
	case "/v2/embed":
		return RouteEmbeddings
	case "":
		return RouteOther
	}
	for r := RouteChat; r < RouteOther; r++ {
		if r.Path() == path {
			return r
		}
	}
	return RouteOther
}
