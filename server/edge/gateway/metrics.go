package gateway

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics counts requests. Label sets are made once: there is one per method, route and status.
type metrics struct {
	duration metric.Float64Histogram
	active   metric.Int64UpDownCounter
	broken   metric.Int64Counter
	comments metric.Int64Counter

	labels sync.Map // labelKey -> metric.MeasurementOption
}

type labelKey struct {
	method, route string
	status        int
}

// phase is when a keep-alive was sent.
type phase string

const (
	phaseWaiting phase = "waiting" // before the answer began: it sent the head
	phaseStream  phase = "stream"
)

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/edge/gateway")
	return &metrics{
		duration: s.Histogram("http.server.request.duration", "s", "Time from a request's header to the last byte of its answer.",
			0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
		active: s.UpDownCounter("http.server.active_requests", "{request}", "REST requests being answered."),
		broken: s.CounterBy("kvpilot.gateway.broken_streams", "{stream}", "Answers that failed after their first byte, by reason.",
			instruments.Values("reason", apierror.Name(apierror.UpstreamStreamBroken), apierror.Name(apierror.UpstreamError), apierror.Name(apierror.Cancelled))...),
		comments: s.CounterBy("kvpilot.gateway.keep_alives", "{comment}", "Comments that kept a stream's connection open (gateway.sse_keep_alive), by phase: waiting (the first one of a request without an answer, with the head) or stream.",
			instruments.Values("phase", string(phaseWaiting), string(phaseStream))...),
	}
}

// begin counts a request that begins, end one that ends.
func (m *metrics) begin() { m.active.Add(context.Background(), 1) }

func (m *metrics) end(of labelKey, began time.Time) {
	m.active.Add(context.Background(), -1)
	m.duration.Record(context.Background(), time.Since(began).Seconds(), m.label(of))
}

func (m *metrics) label(key labelKey) metric.MeasurementOption {
	if set, ok := m.labels.Load(key); ok {
		return set.(metric.MeasurementOption)
	}
	attrs := []attribute.KeyValue{attribute.String("http.request.method", key.method), attribute.Int("http.response.status_code", key.status)}
	if key.route != "" {
		attrs = append(attrs, attribute.String("http.route", key.route))
	}
	set := instruments.Labels(attrs...)
	m.labels.Store(key, set)
	return set
}

func (m *metrics) brokenStream(e *apierror.Error) {
	m.broken.Add(context.Background(), 1, instruments.Label("reason", apierror.Name(e.Reason)))
}

func (m *metrics) alive(at phase) {
	m.comments.Add(context.Background(), 1, instruments.Label("phase", string(at)))
}
