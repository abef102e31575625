package ledger

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Refused instruments.Keyed[Full]     `metric:"kvpilot.ledger.refused" unit:"{charge}" by:"kind by" help:"Refused charges, by kind (body, answer, stream, connection) and by whose share was used up."`
	Evicted instruments.Keyed[Kind]     `metric:"kvpilot.ledger.evicted" unit:"{hold}" by:"kind" help:"Slow bodies and answers, idle streams and connections ended because their room was wanted, by kind."`
	Held    metric.Int64ObservableGauge `metric:"kvpilot.ledger.held" unit:"By" by:"kind" help:"Memory held for callers, by kind; streams and connections at their fixed costs."`
	Limit   metric.Int64ObservableGauge `metric:"kvpilot.ledger.limit" unit:"By" by:"pot" help:"The most that may be held, by pot: bytes (bodies and answers) and places (streams and connections)."`
}

func newMetrics(provider metric.MeterProvider, l *Ledger) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/kit/ledger", m)
	for k := range kinds {
		m.Evicted.Know(k)
		for _, by := range []string{"process", "tenant", "address", "nameless"} {
			m.Refused.Know(Full{k, by})
		}
	}
	s.Observe(func(o metric.Observer) {
		for k := range kinds {
			o.ObserveInt64(m.Held, l.Held(k), m.Evicted.Label(k))
		}
		o.ObserveInt64(m.Limit, l.config.Bytes, instruments.Label("pot", "bytes"))
		o.ObserveInt64(m.Limit, l.config.Places, instruments.Label("pot", "places"))
	})
	return m
}

// Labels has the labels of the key in metrics.
func (f Full) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("kind", f.Kind.String()), attribute.String("by", f.By)}
}

func (m *metrics) refuse(err error) {
	if full := asFull(err); full != nil {
		m.Refused.Add(*full)
	}
}
