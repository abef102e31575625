package grpcapi

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics counts what only the surface sees.
type metrics struct {
	panics      metric.Int64Counter
	refused     metric.Int64Counter
	elsewhere   metric.Int64Counter
	released    metric.Int64Counter
	unknownKey  metric.MeasurementOption
	notAllowed  metric.MeasurementOption
	brokenRules metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/edge/grpcapi")
	var m metrics
	var errs [4]error
	m.panics, errs[0] = meter.Int64Counter("kvpilot.grpcapi.panics", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that panicked."))
	m.refused, errs[1] = meter.Int64Counter("kvpilot.grpcapi.refused", metric.WithUnit("{call}"),
		metric.WithDescription("Calls rejected before their handler ran, by reason."))
	m.elsewhere, errs[2] = meter.Int64Counter("kvpilot.grpcapi.served_elsewhere", metric.WithUnit("{request}"),
		metric.WithDescription("Requests served by another replica than the one chosen for the external caller."))
	m.released, errs[3] = meter.Int64Counter("kvpilot.grpcapi.released_by_stream_end", metric.WithUnit("{reservation}"),
		metric.WithDescription("Reservations that ended because the tracking stream they were bound to ended."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	reason := func(r string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", r)))
	}
	m.unknownKey, m.notAllowed, m.brokenRules = reason("unauthenticated"), reason("role"), reason("rules")
	ctx := context.Background()
	for _, c := range []metric.Int64Counter{m.panics, m.elsewhere, m.released} {
		c.Add(ctx, 0)
	}
	for _, o := range []metric.MeasurementOption{m.unknownKey, m.notAllowed, m.brokenRules} {
		m.refused.Add(ctx, 0, o)
	}
	return &m, nil
}
