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
	Attempts instruments.Keyed[retry.Verdict] `metric:"kvpilot.upstream.attempts" unit:"{request}" by:"outcome" help:"Requests sent to replicas, by outcome up to the header of the answer."`
	Head     metric.Float64Histogram          `metric:"kvpilot.upstream.response_head.duration" unit:"s" by:"outcome" bounds:"0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300" help:"Time from sending a request to the header of its answer."`
	Redials  metric.Int64Counter              `metric:"kvpilot.upstream.stale_connections" unit:"{request}" help:"Requests sent again on a fresh connection because the replica had closed the idle one."`
	Dials    metric.Int64Counter              `metric:"kvpilot.upstream.dials" unit:"{connection}" help:"Connections opened to replicas."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/wire/upstream", m)
	m.Attempts.Know(retry.Verdicts()...)
	return m
}

func (m *metrics) answered(v retry.Verdict, took time.Duration) {
	m.Attempts.Add(v)
	m.Head.Record(context.Background(), took.Seconds(), m.Attempts.Label(v))
}
