package facts

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	taken, unfit, calls, pins, lostPins metric.Int64Counter

	byKind     []metric.MeasurementOption
	ok, failed metric.MeasurementOption
	byAnswer   map[string]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, store *Store) *metrics {
	s := instruments.New(provider, "server/peers/facts")
	m := &metrics{
		byKind: instruments.Values("kind", kindNames[:]...),
		ok:     instruments.Label("outcome", "ok"), failed: instruments.Label("outcome", "failed"),
		byAnswer: map[string]metric.MeasurementOption{},
	}
	var answers []metric.MeasurementOption
	for _, answer := range []string{"found", "unknown", "failed"} {
		m.byAnswer[answer] = instruments.Label("outcome", answer)
		answers = append(answers, m.byAnswer[answer])
	}
	m.taken = s.CounterBy("kvpilot.peers.facts_applied", "{fact}", "Facts of peers that were news, by kind: drain, registration, rate.", m.byKind...)
	m.unfit = s.Counter("kvpilot.peers.facts_rejected", "{fact}", "Facts of peers that are invalid or that the registry rejects.")
	m.calls = s.CounterBy("kvpilot.peers.fact_shares", "{call}", "Calls that share facts with peers, by outcome.", m.ok, m.failed)
	m.pins = s.CounterBy("kvpilot.peers.pin_questions", "{question}", "Questions to the router that keeps a stored response's place, by outcome: found, unknown, failed.", answers...)
	m.lostPins = s.Counter("kvpilot.peers.pins_dropped", "{pin}", "Places of stored responses that were not passed on, because too many waited.")
	known := s.ObservedGauge("kvpilot.peers.facts", "{fact}", "Facts that all routers share, by kind: drain, registration, rate. Ended ones count for a day.")
	s.Observe(func(o metric.Observer) {
		store.mu.Lock()
		counts := [kinds]int{len(store.drains.facts), len(store.regs.facts), len(store.rates.facts)}
		store.mu.Unlock()
		for k, n := range counts {
			o.ObserveInt64(known, int64(n), m.byKind[k])
		}
	})
	return m
}

func (m *metrics) applied(k kind) { m.taken.Add(context.Background(), 1, m.byKind[k]) }
func (m *metrics) rejected()      { m.unfit.Add(context.Background(), 1) }
func (m *metrics) lostPin()       { m.lostPins.Add(context.Background(), 1) }

func (m *metrics) asked(answer string) { m.pins.Add(context.Background(), 1, m.byAnswer[answer]) }

func (m *metrics) shared(err error) {
	label := m.ok
	if err != nil {
		label = m.failed
	}
	m.calls.Add(context.Background(), 1, label)
}
