package directory

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	lookups instruments.Keyed[string]
	wait    metric.Float64Histogram
}

func newMetrics(provider metric.MeterProvider) metrics {
	s := instruments.New(provider, "server/fleet/directory")
	return metrics{
		lookups: instruments.NewKeyed(s, "kvpilot.directory.lookups", "{lookup}", "Prompts for which the directory was to be asked, by result: hit, miss, late (no whole answer within the budget), gone (not reachable, or broken off), refused (another status than 200), wrong (an answer that cannot be used), resting (not asked, because it had failed), busy (not asked, because too many lookups were in flight).",
			results(), func(result string) metric.MeasurementOption { return instruments.Label("result", result) }),
		wait: s.Histogram("kvpilot.directory.wait", "s", "Time that choices waited for the directory.", 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1),
	}
}

// looked counts a lookup.
func (m *metrics) looked(result string, took time.Duration) {
	m.lookups.Add(result)
	m.wait.Record(context.Background(), took.Seconds())
}
