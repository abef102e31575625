package ledger

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	refused, evicted metric.Int64Counter
	refusals         map[Full]metric.MeasurementOption
	evictions        [kinds]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, l *Ledger) *metrics {
	s := instruments.New(provider, "server/kit/ledger")
	m := &metrics{refusals: map[Full]metric.MeasurementOption{}}
	var all []metric.MeasurementOption
	for k := range kinds {
		m.evictions[k] = instruments.Label("kind", k.String())
		for _, by := range []string{"process", "tenant", "address", "nameless"} {
			label := instruments.Labels(attribute.String("kind", k.String()), attribute.String("by", by))
			m.refusals[Full{k, by}], all = label, append(all, label)
		}
	}
	m.refused = s.CounterBy("kvpilot.ledger.refused", "{charge}", "Refused charges, by kind (body, answer, stream, connection) and by whose share was used up.", all...)
	m.evicted = s.CounterBy("kvpilot.ledger.evicted", "{hold}", "Slow bodies and answers, idle streams and connections ended because their room was wanted, by kind.", m.evictions[:]...)
	held := s.ObservedGauge("kvpilot.ledger.held", "By", "Memory held for callers, by kind; streams and connections at their fixed costs.")
	limit := s.ObservedGauge("kvpilot.ledger.limit", "By", "The most that may be held, by pot: bytes (bodies and answers) and places (streams and connections).")
	ofBytes, ofPlaces := instruments.Label("pot", "bytes"), instruments.Label("pot", "places")
	s.Observe(func(o metric.Observer) {
		for k := range kinds {
			o.ObserveInt64(held, l.Held(k), m.evictions[k])
		}
		o.ObserveInt64(limit, l.config.Bytes, ofBytes)
		o.ObserveInt64(limit, l.config.Places, ofPlaces)
	})
	return m
}

func (m *metrics) refuse(err error) {
	if full := asFull(err); full != nil {
		m.refused.Add(context.Background(), 1, m.refusals[*full])
	}
}

func (m *metrics) evict(k Kind) { m.evicted.Add(context.Background(), 1, m.evictions[k]) }
