package router

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const metricNS = "kvpilot.router."

// byResult labels a result.
func byResult(name string) metric.MeasurementOption { return instruments.Label("result", name) }

// The response headers that explain a choice.
const (
	headerRequestID = "X-Request-Id"
	headerReplica   = "X-Kvpilot-Replica"
	headerPrefill   = "X-Kvpilot-Prefill"
	headerAddress   = "X-Kvpilot-Address"
	headerOverlap   = "X-Kvpilot-Overlap-Tokens"
	headerPolicy    = "X-Kvpilot-Policy"
	headerChoice    = "X-Kvpilot-Choice"
	headerDecision  = "X-Kvpilot-Decision"
	headerOverhead  = "X-Kvpilot-Overhead-Us"
)

const (
	// headerDropped names the members of the client's request that did not go to the engine.
	headerDropped    = "X-Kvpilot-Dropped"
	headerRetryAfter = "Retry-After"
)

// headerResume is "off" for a stream that must not be resumed on another replica, "carry" for one whose client keeps its events, with the
// ids, and "continue" for the request of such a client to continue a stream which another router has begun.
const headerResume = "X-Kvpilot-Resume"
