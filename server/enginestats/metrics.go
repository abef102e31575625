package enginestats

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

type metrics struct {
	polls      metric.Int64Counter
	ok, failed metric.AddOption
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	polls, err := provider.Meter("github.com/kvpilot/kvpilot/server/enginestats").Int64Counter(
		"kvpilot.enginestats.polls", metric.WithUnit("{poll}"),
		metric.WithDescription("Looks at replicas' /metrics, by outcome: ok, failed."))
	if err != nil {
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
