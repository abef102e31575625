package audit

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct{ events, lost metric.Int64Counter }

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/observe/audit")
	var series []metric.MeasurementOption
	for _, k := range kinds() {
		series = append(series, label(k))
	}
	return &metrics{
		events: s.CounterBy("kvpilot.audit.events", "{event}", "Audit events by kind, counted even if no audit log is written.", series...),
		lost:   s.Counter("kvpilot.audit.dropped", "{event}", "Events dropped because the disk was too slow."),
	}
}

func label(k Kind) metric.MeasurementOption { return instruments.Label("event", string(k)) }

func (m *metrics) event(k Kind) { m.events.Add(context.Background(), 1, label(k)) }

// Lost implements journal.Losses.
func (m *metrics) Lost(n int64) { m.lost.Add(context.Background(), n) }
