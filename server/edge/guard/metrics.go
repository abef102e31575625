package guard

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// ending is why a door ended or refused a call.
type ending int

const (
	refusedFull ending = iota
	slowSender
	stalledReader
	endings // how many there are
)

func (e ending) String() string {
	switch e {
	case refusedFull:
		return "bodies_full"
	case slowSender:
		return "slow_sender"
	case stalledReader:
		return "stalled_reader"
	case endings:
	}
	return "unknown"
}

type metrics struct {
	ended   metric.Int64Counter
	reasons [endings]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, b *Budget) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/edge/guard")
	var m metrics
	var errs [2]error
	m.ended, errs[0] = meter.Int64Counter("kvpilot.guard.ended_calls", metric.WithUnit("{call}"),
		metric.WithDescription("gRPC calls that were rejected or ended to keep memory and streams within their bounds, by reason."))
	_, errs[1] = meter.Int64ObservableGauge("kvpilot.guard.body_bytes", metric.WithUnit("By"),
		metric.WithDescription("Bytes of request bodies in memory, REST and gRPC together."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(b.Held())
			return nil
		}))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for e := range endings {
		m.reasons[e] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", e.String())))
		m.ended.Add(context.Background(), 0, m.reasons[e])
	}
	return &m, nil
}

func (m *metrics) count(e ending) { m.ended.Add(context.Background(), 1, m.reasons[e]) }
