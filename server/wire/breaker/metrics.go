package breaker

import (
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

// metrics are the breaker's counts. The zero value counts nothing.
type metrics struct {
	Opened instruments.Keyed[retry.Cause] `metric:"kvpilot.upstream.breaker.opened" unit:"{replica}" by:"cause" help:"Times that a replica's breaker opened, by the cause of the last failure: network, replica, rank."`
	Used   instruments.Keyed[string]      `metric:"kvpilot.upstream.breaker.ignored" unit:"{choice}" by:"reason" help:"Choices that used replicas with an open breaker, by reason: all_open (there is no other) or max_ejected (more than upstream.breaker.max_ejected are open)."`
	State  metric.Int64ObservableGauge    `metric:"kvpilot.upstream.breaker.state" unit:"{replica}" by:"replica state" help:"One for the present state of each replica's breaker: closed, trial, open (gets no requests)."`
	Faults metric.Int64ObservableCounter  `metric:"kvpilot.upstream.replica_faults" unit:"{attempt}" by:"replica" help:"Attempts that failed by the fault of network, replica or rank, by replica."`
}

// Meter adds the breaker's counters and the state of each replica's circuit to the metrics, before the first request. replicas lists
// the replicas that exist.
func (b *Breaker) Meter(provider metric.MeterProvider, replicas func() []replica.ID) {
	m := &b.metrics
	s := instruments.Declare(provider, "server/wire/breaker", m)
	for _, c := range retry.Causes() {
		if c.Against() {
			m.Opened.Know(c)
		}
	}
	m.Used.Know(reasonAll, reasonShare)
	s.Observe(func(o metric.Observer) {
		for _, id := range replicas() {
			o.ObserveInt64(m.Faults, b.faultsOf(id), instruments.Label("replica", string(id)))
			o.ObserveInt64(m.State, 1, instruments.Labels(attribute.String("replica", string(id)), attribute.String("state", b.State(id).String())))
		}
	})
}

// faultsOf is the number of attempts that count against a replica.
func (b *Breaker) faultsOf(id replica.ID) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults[id]
}
