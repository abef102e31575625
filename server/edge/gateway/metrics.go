package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// metrics counts requests. Label sets are made once: there is one per method, route and status.
type metrics struct {
	duration metric.Float64Histogram
	active   metric.Int64UpDownCounter
	broken   metric.Int64Counter

	labels sync.Map // labelKey -> metric.MeasurementOption
}

type labelKey struct {
	method, route string
	status        int
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/edge/gateway")
	var m metrics
	var errs [3]error
	m.duration, errs[0] = meter.Float64Histogram("http.server.request.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from a request's header to the last byte of its answer."),
		metric.WithExplicitBucketBoundaries(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300))
	m.active, errs[1] = meter.Int64UpDownCounter("http.server.active_requests", metric.WithUnit("{request}"),
		metric.WithDescription("REST requests being answered."))
	m.broken, errs[2] = meter.Int64Counter("kvpilot.gateway.broken_streams", metric.WithUnit("{stream}"),
		metric.WithDescription("Answers that failed after their first byte, by reason."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, reason := range []apierror.Reason{apierror.UpstreamStreamBroken, apierror.UpstreamError, apierror.Cancelled} {
		m.broken.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", apierror.Name(reason))))
	}
	return &m, nil
}

// begin counts a request in, end counts it out.
func (m *metrics) begin() { m.active.Add(context.Background(), 1) }

func (m *metrics) end(rq *request) {
	m.active.Add(context.Background(), -1)
	m.duration.Record(context.Background(), time.Since(rq.call.Received).Seconds(), m.label(rq))
}

func (m *metrics) label(rq *request) metric.MeasurementOption {
	key := labelKey{knownMethod(rq.call.Method), rq.pattern, rq.outcome()}
	if set, ok := m.labels.Load(key); ok {
		return set.(metric.MeasurementOption)
	}
	attrs := []attribute.KeyValue{attribute.String("http.request.method", key.method), attribute.Int("http.response.status_code", key.status)}
	if key.route != "" {
		attrs = append(attrs, attribute.String("http.route", key.route))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	m.labels.Store(key, set)
	return set
}

func (m *metrics) brokenStream(e *apierror.Error) {
	m.broken.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", apierror.Name(e.Reason))))
}
