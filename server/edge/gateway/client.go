package gateway

import (
	"net/http"
	"strings"
	"time"
)

// client is the connection to the client of a request, for writing.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	// stall is how long the client may read nothing while bytes are written; zero: for ever.
	stall   time.Duration
	stallBy time.Time
	// multiplexed: HTTP/2 ends a stream at its deadline even when nothing is being written.
	multiplexed bool
}

// isShort reports whether too little is left of the time that the client has.
func (c *client) isShort(now time.Time) bool {
	return c.stall > 0 && now.Add(c.stall*3/4).After(c.stallBy)
}

// allow gives the client until the stall timeout to take the next bytes.
func (c *client) allow(now time.Time) {
	c.stallBy = now.Add(c.stall)
	_ = c.control.SetWriteDeadline(c.stallBy) // unsupported by test writers only
}

// flushed ends the time that the client has: the next piece may be long in coming.
func (c *client) flushed() {
	if c.multiplexed && !c.stallBy.IsZero() {
		c.stallBy = time.Time{}
		_ = c.control.SetWriteDeadline(time.Time{}) // as in allow
	}
}

// plainType is a content type without its parameters.
func plainType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return kind
}

// isEvents reports whether a content type means server-sent events.
func isEvents(contentType string) bool { return plainType(contentType) == "text/event-stream" }

// hopByHop reports headers that belong to one connection only.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}
