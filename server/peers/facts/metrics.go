package facts

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Taken    instruments.Keyed[kind]     `metric:"kvpilot.peers.facts_applied" unit:"{fact}" by:"kind" help:"Facts of peers that were news, by kind: drain, registration, rate."`
	Unfit    metric.Int64Counter         `metric:"kvpilot.peers.facts_rejected" unit:"{fact}" help:"Facts of peers that are invalid or that the registry rejects."`
	Calls    instruments.Keyed[string]   `metric:"kvpilot.peers.fact_shares" unit:"{call}" by:"outcome" values:"ok failed" help:"Calls that share facts with peers, by outcome."`
	Pins     instruments.Keyed[string]   `metric:"kvpilot.peers.pin_questions" unit:"{question}" by:"outcome" values:"found unknown failed" help:"Questions to the router that keeps a stored response's place, by outcome: found, unknown, failed."`
	LostPins metric.Int64Counter         `metric:"kvpilot.peers.pins_dropped" unit:"{pin}" help:"Places of stored responses that were not passed on, because too many waited."`
	Known    metric.Int64ObservableGauge `metric:"kvpilot.peers.facts" unit:"{fact}" by:"kind" help:"Facts that all routers share, by kind: drain, registration, rate. Ended ones count for a day."`
}

func newMetrics(provider metric.MeterProvider, store *Store) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/peers/facts", m)
	for k := range kinds {
		m.Taken.Know(k)
	}
	s.Observe(func(o metric.Observer) {
		store.mu.Lock()
		counts := [kinds]int{len(store.drains.facts), len(store.regs.facts), len(store.rates.facts)}
		store.mu.Unlock()
		for k, n := range counts {
			o.ObserveInt64(m.Known, int64(n), m.Taken.Label(kind(k)))
		}
	})
	return m
}

func (m *metrics) rejected() { m.Unfit.Add(context.Background(), 1) }
func (m *metrics) lostPin()  { m.LostPins.Add(context.Background(), 1) }

func (m *metrics) shared(err error) {
	if err != nil {
		m.Calls.Add("failed")
		return
	}
	m.Calls.Add("ok")
}
