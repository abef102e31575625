package enginestats

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Polls instruments.Keyed[string] `metric:"kvpilot.enginestats.polls" unit:"{poll}" by:"outcome" values:"ok failed" help:"Reads of replicas' /metrics, by outcome: ok, failed."`

	Requests metric.Int64ObservableGauge   `metric:"kvpilot.enginestats.requests" unit:"{request}" by:"replica rank state" help:"Requests in a rank's engine by its own report, by state: running, waiting."`
	Usage    metric.Float64ObservableGauge `metric:"kvpilot.enginestats.kv_usage" unit:"1" by:"replica rank" help:"Share of a rank's KV cache in use by its own report."`
	Foreign  metric.Float64ObservableGauge `metric:"kvpilot.enginestats.foreign_requests" unit:"{request}" by:"replica rank" help:"Estimated requests in a rank's engine that this router did not send."`
	Age      metric.Float64ObservableGauge `metric:"kvpilot.enginestats.age" unit:"s" by:"replica rank" help:"Time since a rank's engine last reported."`
}

func newMetrics(provider metric.MeterProvider, p *Poller) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/fleet/enginestats", m).Observe(func(o metric.Observer) {
		now := time.Now()
		for slot, rank := range p.names() {
			s, ok := p.Stats(slot)
			if !ok {
				continue
			}
			name, index := attribute.String("replica", string(rank.Replica)), attribute.Int("rank", rank.Index)
			labels := instruments.Labels(name, index)
			o.ObserveInt64(m.Requests, int64(s.Running), instruments.Labels(name, index, attribute.String("state", "running")))
			o.ObserveInt64(m.Requests, int64(s.Waiting), instruments.Labels(name, index, attribute.String("state", "waiting")))
			o.ObserveFloat64(m.Usage, s.KVUsage, labels)
			o.ObserveFloat64(m.Foreign, s.Foreign(now), labels)
			o.ObserveFloat64(m.Age, now.Sub(s.At).Seconds(), labels)
		}
	})
	return m
}

func (m *metrics) polled(err error) {
	if err != nil {
		m.Polls.Add("failed")
		return
	}
	m.Polls.Add("ok")
}
