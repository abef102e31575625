package audit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

type metrics struct {
	events metric.Int64Counter
	lost   metric.Int64Counter
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/observe/audit")
	var m metrics
	var errs [2]error
	m.events, errs[0] = meter.Int64Counter("kvpilot.audit.events", metric.WithUnit("{event}"),
		metric.WithDescription("Audit events by kind, counted even if no audit log is written."))
	m.lost, errs[1] = meter.Int64Counter("kvpilot.audit.dropped", metric.WithUnit("{event}"),
		metric.WithDescription("Events dropped because the disk was too slow."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, k := range kinds() {
		m.events.Add(context.Background(), 0, label(k))
	}
	m.dropped(0)
	return &m, nil
}

func label(k Kind) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("event", string(k)))
}

func (m *metrics) event(k Kind)    { m.events.Add(context.Background(), 1, label(k)) }
func (m *metrics) dropped(n int64) { m.lost.Add(context.Background(), n) }
