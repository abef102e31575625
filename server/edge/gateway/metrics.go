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
	Duration metric.Float64Histogram   `metric:"http.server.request.duration" unit:"s" bounds:"0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300" help:"Time from a request's header to the last byte of its answer."`
	Active   metric.Int64UpDownCounter `metric:"http.server.active_requests" unit:"{request}" help:"REST requests being answered."`
	Broken   metric.Int64Counter       `metric:"kvpilot.gateway.broken_streams" unit:"{stream}" by:"reason" help:"Answers that failed after their first byte, by reason."`
	Comments instruments.Keyed[phase]  `metric:"kvpilot.gateway.keep_alives" unit:"{comment}" by:"phase" help:"Comments that kept a stream's connection open (gateway.sse_keep_alive), by phase: waiting (the first one of a request without an answer, with the head) or stream."`

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
	m := &metrics{}
	instruments.Declare(provider, "server/edge/gateway", m)
	for _, usual := range []apierror.Reason{apierror.UpstreamStreamBroken, apierror.UpstreamError, apierror.Cancelled} {
		m.Broken.Add(context.Background(), 0, instruments.Label("reason", apierror.Name(usual)))
	}
	m.Comments.Know(phaseWaiting, phaseStream)
	return m
}

// begin counts a request that begins, end one that ends.
func (m *metrics) begin() { m.Active.Add(context.Background(), 1) }

func (m *metrics) end(of labelKey, began time.Time) {
	m.Active.Add(context.Background(), -1)
	m.Duration.Record(context.Background(), time.Since(began).Seconds(), m.label(of))
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
	m.Broken.Add(context.Background(), 1, instruments.Label("reason", apierror.Name(e.Reason)))
}
