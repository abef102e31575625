package breaker

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Meter adds the state of each replica's circuit to the metrics. replicas lists those that there are.
func (b *Breaker) Meter(provider metric.MeterProvider, replicas func() []replica.ID) error {
	if provider == nil {
		return nil
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/wire/breaker")
	state, err := meter.Int64ObservableGauge("kvpilot.upstream.breaker.state",
		metric.WithDescription("One for the present state of each replica's breaker: closed, trial, open (gets no requests)."), metric.WithUnit("{replica}"))
	if err != nil {
		return fmt.Errorf("breaker metrics: %w", err)
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, id := range replicas() {
			o.ObserveInt64(state, 1, metric.WithAttributes(attribute.String("replica", string(id)), attribute.String("state", b.State(id).String())))
		}
		return nil
	}, state)
	if err != nil {
		return fmt.Errorf("breaker metrics: %w", err)
	}
	return nil
}
