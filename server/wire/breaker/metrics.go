package breaker

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// The reasons why a replica with an open circuit is used.
const (
	reasonAll   = "all_open"
	reasonShare = "max_ejected"
)

// metrics are the breaker's counts.
type metrics struct {
	opened, used metric.Int64Counter
	causes       map[retry.Cause]metric.MeasurementOption
	reasons      map[string]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/wire/breaker")
	m := &metrics{causes: map[retry.Cause]metric.MeasurementOption{}, reasons: map[string]metric.MeasurementOption{}}
	var causes, reasons []metric.MeasurementOption
	for _, c := range retry.Causes() {
		if c.Against() {
			m.causes[c] = instruments.Label("cause", c.String())
			causes = append(causes, m.causes[c])
		}
	}
	for _, reason := range []string{reasonAll, reasonShare} {
		m.reasons[reason] = instruments.Label("reason", reason)
		reasons = append(reasons, m.reasons[reason])
	}
	m.opened = s.CounterBy("kvpilot.upstream.breaker.opened", "{replica}", "Times that a replica's breaker opened, by the cause of the last failure: network, replica, rank.", causes...)
	m.used = s.CounterBy("kvpilot.upstream.breaker.ignored", "{choice}", "Choices that used replicas with an open breaker, by reason: all_open (there is no other) or max_ejected (more than upstream.breaker.max_ejected are open).", reasons...)
	return m
}

func (m *metrics) trip(c retry.Cause)    { m.opened.Add(context.Background(), 1, m.causes[c]) }
func (m *metrics) ignored(reason string) { m.used.Add(context.Background(), 1, m.reasons[reason]) }

// Meter adds the breaker's counters and the state of each replica's circuit to the metrics, before the first request. replicas lists
// the replicas that exist.
func (b *Breaker) Meter(provider metric.MeterProvider, replicas func() []replica.ID) {
	b.metrics = newMetrics(provider)
	s := instruments.New(provider, "server/wire/breaker")
	state := s.ObservedGauge("kvpilot.upstream.breaker.state", "{replica}", "One for the present state of each replica's breaker: closed, trial, open (gets no requests).")
	faults := s.ObservedCounter("kvpilot.upstream.replica_faults", "{attempt}", "Attempts that failed by the fault of network, replica or rank, by replica.")
	s.Observe(func(o metric.Observer) {
		for _, id := range replicas() {
			o.ObserveInt64(faults, b.faultsOf(id), instruments.Label("replica", string(id)))
			o.ObserveInt64(state, 1, instruments.Labels(attribute.String("replica", string(id)), attribute.String("state", b.State(id).String())))
		}
	})
}

// faultsOf is the number of attempts that count against a replica.
func (b *Breaker) faultsOf(id replica.ID) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults[id]
}
