package enginestats

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	polls      metric.Int64Counter
	ok, failed metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, p *Poller) *metrics {
	s := instruments.New(provider, "server/fleet/enginestats")
	m := &metrics{ok: instruments.Label("outcome", "ok"), failed: instruments.Label("outcome", "failed")}
	m.polls = s.CounterBy("kvpilot.enginestats.polls", "{poll}", "Reads of replicas' /metrics, by outcome: ok, failed.", m.ok, m.failed)

	requests := s.ObservedGauge("kvpilot.enginestats.requests", "{request}", "Requests in a rank's engine by its own report, by state: running, waiting.")
	usage := s.ObservedFloat("kvpilot.enginestats.kv_usage", "1", "Share of a rank's KV cache in use by its own report.")
	foreign := s.ObservedFloat("kvpilot.enginestats.foreign_requests", "{request}", "Estimated requests in a rank's engine that this router did not send.")
	age := s.ObservedFloat("kvpilot.enginestats.age", "s", "Time since a rank's engine last reported.")
	s.Observe(func(o metric.Observer) {
		now := time.Now()
		for slot, rank := range p.names() {
			s, ok := p.Stats(slot)
			if !ok {
				continue
			}
			name, index := attribute.String("replica", string(rank.Replica)), attribute.Int("rank", rank.Index)
			labels := instruments.Labels(name, index)
			o.ObserveInt64(requests, int64(s.Running), instruments.Labels(name, index, attribute.String("state", "running")))
			o.ObserveInt64(requests, int64(s.Waiting), instruments.Labels(name, index, attribute.String("state", "waiting")))
			o.ObserveFloat64(usage, s.KVUsage, labels)
			o.ObserveFloat64(foreign, s.Foreign(now), labels)
			o.ObserveFloat64(age, now.Sub(s.At).Seconds(), labels)
		}
	})
	return m
}

func (m *metrics) polled(ctx context.Context, err error) {
	if err != nil {
		m.polls.Add(ctx, 1, m.failed)
		return
	}
	m.polls.Add(ctx, 1, m.ok)
}
