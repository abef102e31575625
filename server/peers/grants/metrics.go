package grants

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const ns = "kvpilot.peers.limits."

// outcomes of a report.
const (
	outcomeAnswered = "answered"
	outcomeNotOwner = "not_owner"
	outcomeEpoch    = "unknown_epoch"
	outcomeFailed   = "failed"
)

type metrics struct {
	reports  metric.Int64Counter
	outcomes map[string]metric.MeasurementOption
}

// counts has the counts of Accounts for metrics.
type counts interface {
	// Shown counts the accounts that this router owns, the accounts of which it has a lease, and how often accounts got another owner.
	Shown() (owned, leased int, moved int64)
}

func newMetrics(p metric.MeterProvider, g *Grants) *metrics {
	s := instruments.New(p, "server/peers/grants")
	m := &metrics{outcomes: map[string]metric.MeasurementOption{}}
	var series []metric.MeasurementOption
	for _, o := range []string{outcomeAnswered, outcomeNotOwner, outcomeEpoch, outcomeFailed} {
		m.outcomes[o] = instruments.Label("outcome", o)
		series = append(series, m.outcomes[o])
	}
	m.reports = s.CounterBy(ns+"reports", "{report}", "Reports about tenants' limits to the owners of accounts, by outcome: answered, not_owner (the callee sees another owner), unknown_epoch (it begins again), failed.", series...)
	owned := s.ObservedGauge(ns+"owned", "{account}", "Accounts of tenants that this router owns.")
	leased := s.ObservedGauge(ns+"leases", "{lease}", "Accounts of tenants of which this router has a lease.")
	moved := s.ObservedCounter(ns+"owner.changes", "{change}", "Accounts that got another owner, as this router sees it.")
	share := s.ObservedFloat(ns+"share", "1", "The part of tenants' limits that this router and the routers that it reaches grant; 1 while it reaches all of the last minute.")
	old := s.ObservedGauge(ns+"unable", "{router}", "Routers of another major wire version, with which this one shares no limits.")
	s.Observe(func(o metric.Observer) {
		if c, ok := g.params.Accounts.(counts); ok {
			a, b, n := c.Shown()
			o.ObserveInt64(owned, int64(a))
			o.ObserveInt64(leased, int64(b))
			o.ObserveInt64(moved, n)
		}
		o.ObserveFloat64(share, g.View().Share())
		o.ObserveInt64(old, g.strangers.Load())
	})
	return m
}

func (m *metrics) reported(outcome string) {
	m.reports.Add(context.Background(), 1, m.outcomes[outcome])
}
