package directory

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Lookups instruments.Keyed[string] `metric:"kvpilot.directory.lookups" unit:"{lookup}" by:"result" values:"hit miss late gone refused wrong resting busy" help:"Prompts for which the directory was to be asked, by result: hit, miss, late (no whole answer within the budget), gone (not reachable, or broken off), refused (another status than 200), wrong (an answer that cannot be used), resting (not asked, because it had failed), busy (not asked, because too many lookups were in flight)."`
	Wait    metric.Float64Histogram   `metric:"kvpilot.directory.wait" unit:"s" bounds:"0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.5 1" help:"Time that choices waited for the directory."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/fleet/directory", m)
	return m
}

// looked counts a lookup.
func (m *metrics) looked(result string, took time.Duration) {
	m.Lookups.Add(result)
	m.Wait.Record(context.Background(), took.Seconds())
}
