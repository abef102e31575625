package attempt

import (
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"net/http"
	"strconv"
	"strings"
)

// Explain puts into h what the operator lets clients know about the choice.
func (a *Attempt) Explain(rq *intake.Request, h http.Header) {
	if rq.Call.RequestID != "" {
		h[headerRequestID] = []string{rq.Call.RequestID}
	}
	if rq.Dropped != 0 {
		h[headerDropped] = []string{strings.Join(rq.Dropped.Names(), ", ")}
	}
	show := rq.Settings.Headers
	c := a.Choice
	if show.Replica {
		h[HeaderReplica] = []string{string(c.Replica.ID)}
	}
	if w := c.Decision.Split(); w != nil && show.Replica {
		h[headerPrefill] = []string{string(w.Prefill.Replica)}
	}
	if show.Address {
		h[headerAddress] = []string{c.Replica.URL}
	}
	overlap := rq.Settings.ShowsOverlap(rq.Call.Caller)
	if show.Overlap && overlap {
		h[HeaderOverlap] = []string{strconv.Itoa(c.Held())}
	}
	if show.Policy {
		h[headerPolicy] = []string{string(c.Decision.Policy)}
		if c.Decision.Reason != "" && overlap { // there was a choice; its reason reveals the caches
			h[HeaderChoice] = []string{string(c.Decision.Reason)}
		}
	}
	if show.Decision {
		h[headerDecision] = []string{rq.ID}
	}
	if show.Overhead {
		h[headerOverhead] = []string{strconv.FormatInt(a.overhead.Microseconds(), 10)}
	}
}

// The response headers that explain a choice.
const (
	headerRequestID = "X-Request-Id"
	HeaderReplica   = "X-Kvpilot-Replica"
	headerPrefill   = "X-Kvpilot-Prefill"
	headerAddress   = "X-Kvpilot-Address"
	HeaderOverlap   = "X-Kvpilot-Overlap-Tokens"
	headerPolicy    = "X-Kvpilot-Policy"
	HeaderChoice    = "X-Kvpilot-Choice"
	headerDecision  = "X-Kvpilot-Decision"
	headerOverhead  = "X-Kvpilot-Overhead-Us"
)

const (
	// headerDropped names the members of the client's request that did not go to the engine.
	headerDropped    = "X-Kvpilot-Dropped"
	HeaderRetryAfter = "Retry-After"
)
