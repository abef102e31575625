package breaker

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Meter adds the state of each replica's circuit to the metrics. replicas lists the replicas that exist.
func (b *Breaker) Meter(provider metric.MeterProvider, replicas func() []replica.ID) {
	s := instruments.New(provider, "server/wire/breaker")
	state := s.ObservedGauge("kvpilot.upstream.breaker.state", "{replica}", "One for the present state of each replica's breaker: closed, trial, open (gets no requests).")
	s.Observe(func(o metric.Observer) {
		for _, id := range replicas() {
			o.ObserveInt64(state, 1, instruments.Labels(attribute.String("replica", string(id)), attribute.String("state", b.State(id).String())))
		}
	})
}
