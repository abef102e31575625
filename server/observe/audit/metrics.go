package audit

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Events  instruments.Keyed[Kind] `metric:"kvpilot.audit.events" unit:"{event}" by:"event" help:"Audit events by kind, counted even if no audit log is written."`
	Dropped metric.Int64Counter     `metric:"kvpilot.audit.dropped" unit:"{event}" help:"Events dropped because the disk was too slow."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/observe/audit", m)
	m.Events.Know(kinds()...)
	return m
}

// Lost implements journal.Losses.
func (m *metrics) Lost(n int64) { m.Dropped.Add(context.Background(), n) }
