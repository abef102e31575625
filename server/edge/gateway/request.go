package gateway

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// request is one HTTP request on its way. The handlers of raw routes see it as an answer, the generated handlers of typed routes in a
// typed. One goroutine uses it at a time.
type request struct {
	g        *Gateway
	config   *Config // as the request began with
	w        http.ResponseWriter
	control  *http.ResponseController
	ctx      context.Context // the handler's: gRPC's interfaces ask for it by method
	call     httpcall.Call
	params   map[string]string // the variables of the path
	body     body
	received bool // the body was handed to the handler of a raw route
	holding  holding
	pattern  string // the route as metrics and spans name it; empty when there is none

	status  int     // as sent; 0 while nothing was
	tail    [2]byte // the last bytes of a stream of server-sent events
	events  bool    // the answer is a stream of server-sent events
	lines   bool    // the answer is a stream of JSON lines
	pushed  bool    // every write goes out at once
	opened  bool    // the first piece was written
	failed  *apierror.Error
	live    *liveBody // of a stream of messages; nil otherwise
	tunnel  *tunnel   // what the connection became; nil while it is HTTP
	aborted bool      // the connection must not look as if the answer were whole
	stallBy time.Time
	alive   *keepAlive // of a stream; nil without one
	// multiplexed: HTTP/2 ends a stream at its deadline even when nothing is being written.
	multiplexed bool
}

var (
	errBegun      = errors.New("the answer has begun")
	errSlowReader = errors.New("the client reads the answer too slowly, and its memory was needed")
)

// start sends the status and the headers, with the first bytes of the body.
func (rq *request) start(status int) {
	h := rq.w.Header()
	kind := h.Get("Content-Type")
	rq.events, rq.lines = isEvents(kind), plainType(kind) == typeLines
	rq.pushed = h.Get("Content-Length") == ""
	rq.status = status
	if !rq.multiplexed {
		rq.extend() // for an answer that is written when its handler has ended
	}
	rq.w.WriteHeader(status)
}

// plainType is a content type without its parameters.
func plainType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return kind
}

// isEvents reports whether a content type is that of server-sent events.
func isEvents(contentType string) bool { return plainType(contentType) == "text/event-stream" }

// write sends bytes of the body; those of a stream leave at once. A client that takes nothing for
// the stall timeout loses its connection: a reader that is merely slow holds the engine back.
func (rq *request) write(p []byte) error {
	rq.extend()
	if rq.events {
		rq.note(p)
		if !rq.opened {
			rq.opened = true
			return rq.apart(p)
		}
	}
	return rq.send(p)
}

// note keeps the last two bytes of a stream.
func (rq *request) note(p []byte) {
	switch n := len(p); n {
	case 0:
	case 1:
		rq.tail[0], rq.tail[1] = rq.tail[1], p[0]
	default:
		rq.tail[0], rq.tail[1] = p[n-2], p[n-1]
	}
}

// endOfEvent ends an event that was cut off in its middle, so that the next one stands for itself.
func (rq *request) endOfEvent() []byte {
	switch last := rq.tail[1]; {
	case last == 0, rq.tail == [2]byte{'\n', '\n'}:
		return nil
	case last == '\n', last == '\r': // after a line, or after an event with other line ends
		return []byte("\n")
	}
	return []byte("\n\n")
}

// fail answers with an error. The first one counts.
func (rq *request) fail(e *apierror.Error) {
	rq.alive.lock()
	defer rq.alive.unlock()
	rq.failLocked(e)
}

// failLocked is fail for callers that keep comments away.
func (rq *request) failLocked(e *apierror.Error) {
	if rq.failed != nil {
		return
	}
	if e.Reason == apierror.Cancelled && rq.ctx.Err() != nil {
		e = clientLeft(e)
	}
	rq.failed = e
	dialect := rq.dialect()
	switch {
	case rq.tunnel != nil: // the connection is no longer one for answers
		rq.g.metrics.brokenStream(e)
	case rq.status == 0:
		contentType, text := e.Body(dialect)
		h := rq.w.Header()
		setErrorHeaders(h, e)
		h.Set("Content-Type", contentType)
		h.Set("Content-Length", itoa(int64(len(text))))
		if rq.holding.rest != nil {
			_ = rq.control.EnableFullDuplex() // the rest of the body is read after the answer
		}
		rq.start(e.HTTPStatus())
		_ = rq.write(text) // the client may be gone
	case rq.events:
		_ = rq.write(append(rq.endOfEvent(), e.Events(dialect)...)) // as above
		rq.g.metrics.brokenStream(e)
	case rq.lines:
		_ = rq.write(append(e.JSON(dialect), '\n')) // as above
		rq.g.metrics.brokenStream(e)
	default:
		rq.aborted = true
		rq.g.metrics.brokenStream(e)
	}
}

// setErrorHeaders sets the headers that go with an error: reason, retry hints, authentication and upgrade.
func setErrorHeaders(h http.Header, e *apierror.Error) {
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

// dialect is that of the request's path; of a proxy's question for a replica, that of its client's path.
func (rq *request) dialect() apierror.Dialect {
	if below(strings.Replace(rq.call.Path, ":", "/", 1), "/v1/route") {
		return dialectOf(rq.call.Header.Get("X-Kvpilot-Path"))
	}
	return dialectOf(rq.call.Path)
}

// dialectOf is Anthropic's below /v1/messages, OpenAI's elsewhere, whose responses are streams of their own kind.
func dialectOf(path string) apierror.Dialect {
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

// hopByHop reports headers that belong to one connection only.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}
