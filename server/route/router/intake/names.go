package intake

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// MetricNS begins the names of the router's metrics.
const MetricNS = "kvpilot.router."

// ByResult labels a result.
func ByResult(name string) metric.MeasurementOption { return instruments.Label("result", name) }

// HeaderResume is "off" for a stream that must not be resumed on another replica, "carry" for one whose client keeps its events, with the
// ids, and "continue" for the request of such a client to continue a stream which another router has begun.
const HeaderResume = "X-Kvpilot-Resume"
