package router

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const metricNS = "kvpilot.router."

// byResult labels a result.
func byResult(name string) metric.MeasurementOption { return instruments.Label("result", name) }

// headerResume is "off" for a stream that must not be resumed on another replica, "carry" for one whose client keeps its events, with the
// ids, and "continue" for the request of such a client to continue a stream which another router has begun.
const headerResume = "X-Kvpilot-Resume"
