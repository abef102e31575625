package grants

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// outcomes of a report.
const (
	outcomeAnswered = "answered"
	outcomeNotOwner = "not_owner"
	outcomeEpoch    = "unknown_epoch"
	outcomeFailed   = "failed"
)

type metrics struct {
	Reports instruments.Keyed[string]     `metric:"kvpilot.peers.limits.reports" unit:"{report}" by:"outcome" help:"Reports about tenants' limits to the owners of accounts, by outcome: answered, not_owner (the callee sees another owner), unknown_epoch (it begins again), failed."`
	Owned   metric.Int64ObservableGauge   `metric:"kvpilot.peers.limits.owned" unit:"{account}" help:"Accounts of tenants that this router owns."`
	Leased  metric.Int64ObservableGauge   `metric:"kvpilot.peers.limits.leases" unit:"{lease}" help:"Accounts of tenants of which this router has a lease."`
	Moved   metric.Int64ObservableCounter `metric:"kvpilot.peers.limits.owner.changes" unit:"{change}" help:"Accounts that got another owner, as this router sees it."`
	Share   metric.Float64ObservableGauge `metric:"kvpilot.peers.limits.share" unit:"1" help:"The part of tenants' limits that this router and the routers that it reaches grant; 1 while it reaches all of the last minute."`
	Old     metric.Int64ObservableGauge   `metric:"kvpilot.peers.limits.unable" unit:"{router}" help:"Routers of another major wire version, with which this one shares no limits."`
}

// counts has the counts of Accounts for metrics.
type counts interface {
	// Shown counts the accounts that this router owns, the accounts of which it has a lease, and how often accounts got another owner.
	Shown() (owned, leased int, moved int64)
}

func newMetrics(p metric.MeterProvider, g *Grants) *metrics {
	m := &metrics{}
	s := instruments.Declare(p, "server/peers/grants", m)
	m.Reports.Know(outcomeAnswered, outcomeNotOwner, outcomeEpoch, outcomeFailed)
	s.Observe(func(o metric.Observer) {
		if c, ok := g.params.Accounts.(counts); ok {
			a, b, n := c.Shown()
			o.ObserveInt64(m.Owned, int64(a))
			o.ObserveInt64(m.Leased, int64(b))
			o.ObserveInt64(m.Moved, n)
		}
		o.ObserveFloat64(m.Share, g.View().Share())
		o.ObserveInt64(m.Old, g.strangers.Load())
	})
	return m
}
