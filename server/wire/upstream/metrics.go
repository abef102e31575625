package upstream

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// metrics are the client's counts.
type metrics struct {
	attempts, redials, dials metric.Int64Counter
	head                     metric.Float64Histogram
	byVerdict                []metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/wire/upstream")
	m := &metrics{}
	for _, v := range retry.Verdicts() {
		m.byVerdict = append(m.byVerdict, instruments.Label("outcome", v.String()))
	}
	m.attempts = s.CounterBy("kvpilot.upstream.attempts", "{request}", "Requests sent to replicas, by outcome up to the header of the answer.", m.byVerdict...)
	m.head = s.Histogram("kvpilot.upstream.response_head.duration", "s", "Time from sending a request to the header of its answer.",
		.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
	m.redials = s.Counter("kvpilot.upstream.stale_connections", "{request}", "Requests sent again on a fresh connection because the replica had closed the idle one.")
	m.dials = s.Counter("kvpilot.upstream.dials", "{connection}", "Connections opened to replicas.")
	return m
}

func (m *metrics) answered(v retry.Verdict, took time.Duration) {
	m.attempts.Add(context.Background(), 1, m.byVerdict[v])
	m.head.Record(context.Background(), took.Seconds(), m.byVerdict[v])
}
