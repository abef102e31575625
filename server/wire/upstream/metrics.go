package upstream

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// metrics are what the client counts. Metric options are made once: building an attribute set
// for each request costs more than counting it.
type metrics struct {
	attempts metric.Int64Counter
	head     metric.Float64Histogram
	redials  metric.Int64Counter
	dials    metric.Int64Counter
	byKind   []metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/wire/upstream")
	m := &metrics{}
	// The names are constant and valid, which is all that these constructors check.
	m.attempts, _ = meter.Int64Counter("kvpilot.upstream.attempts",
		metric.WithDescription("Requests sent to replicas, by outcome up to the header of the answer."), metric.WithUnit("{request}"))
	m.head, _ = meter.Float64Histogram("kvpilot.upstream.response_head.duration",
		metric.WithDescription("Time from sending a request to the header of its answer."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300))
	m.redials, _ = meter.Int64Counter("kvpilot.upstream.stale_connections",
		metric.WithDescription("Requests sent again on a fresh connection because the replica had closed the idle one."), metric.WithUnit("{request}"))
	m.dials, _ = meter.Int64Counter("kvpilot.upstream.dials",
		metric.WithDescription("Connections opened to replicas."), metric.WithUnit("{connection}"))
	for _, o := range retry.Verdicts() {
		option := metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o.String())))
		m.byKind = append(m.byKind, option)
		m.attempts.Add(context.Background(), 0, option)
	}
	m.redials.Add(context.Background(), 0)
	m.dials.Add(context.Background(), 0)
	return m
}

func (m *metrics) answered(o retry.Verdict, took time.Duration) {
	m.attempts.Add(context.Background(), 1, m.byKind[o])
	m.head.Record(context.Background(), took.Seconds(), m.byKind[o])
}
