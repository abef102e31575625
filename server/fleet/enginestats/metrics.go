package enginestats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

type metrics struct {
	polls      metric.Int64Counter
	ok, failed metric.AddOption
}

func newMetrics(provider metric.MeterProvider, p *Poller) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/fleet/enginestats")
	polls, err := meter.Int64Counter("kvpilot.enginestats.polls", metric.WithUnit("{poll}"),
		metric.WithDescription("Reads of replicas' /metrics, by outcome: ok, failed."))
	if err := errors.Join(err, newRankMetrics(meter, p)); err != nil {
		return nil, fmt.Errorf("register enginestats metrics: %w", err)
	}
	m := &metrics{polls: polls, ok: outcome("ok"), failed: outcome("failed")}
	polls.Add(context.Background(), 0, m.ok)
	polls.Add(context.Background(), 0, m.failed)
	return m, nil
}

func outcome(name string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
}

func (m *metrics) polled(ctx context.Context, err error) {
	if err != nil {
		m.polls.Add(ctx, 1, m.failed)
		return
	}
	m.polls.Add(ctx, 1, m.ok)
}

// newRankMetrics registers what each rank's engine reported last.
func newRankMetrics(meter metric.Meter, p *Poller) error {
	requests, err1 := meter.Int64ObservableGauge("kvpilot.enginestats.requests",
		metric.WithUnit("{request}"), metric.WithDescription("Requests in a rank's engine by its own report, by state: running, waiting."))
	usage, err2 := meter.Float64ObservableGauge("kvpilot.enginestats.kv_usage",
		metric.WithUnit("1"), metric.WithDescription("Share of a rank's KV cache in use by its own report."))
	foreign, err3 := meter.Float64ObservableGauge("kvpilot.enginestats.foreign_requests",
		metric.WithUnit("{request}"), metric.WithDescription("Estimated requests in a rank's engine that this router did not send."))
	age, err4 := meter.Float64ObservableGauge("kvpilot.enginestats.age",
		metric.WithUnit("s"), metric.WithDescription("Time since a rank's engine last reported."))
	_, err5 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := time.Now()
		for slot, rank := range p.names() {
			s, ok := p.Stats(slot)
			if !ok {
				continue
			}
			name, index := attribute.String("replica", string(rank.Replica)), attribute.Int("rank", rank.Index)
			labels := metric.WithAttributes(name, index)
			o.ObserveInt64(requests, int64(s.Running), metric.WithAttributes(name, index, attribute.String("state", "running")))
			o.ObserveInt64(requests, int64(s.Waiting), metric.WithAttributes(name, index, attribute.String("state", "waiting")))
			o.ObserveFloat64(usage, s.KVUsage, labels)
			o.ObserveFloat64(foreign, s.Foreign(now), labels)
			o.ObserveFloat64(age, now.Sub(s.At).Seconds(), labels)
		}
		return nil
	}, requests, usage, foreign, age)
	return errors.Join(err1, err2, err3, err4, err5)
}
