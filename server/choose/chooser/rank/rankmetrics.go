package rank

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Metrics show the ranks. The series of a rank go with it.
type Metrics struct {
	Predictions metric.Int64ObservableCounter `metric:"kvpilot.chooser.predictions" unit:"{prediction}" by:"replica rank result" help:"Predicted first tokens of streamed requests by rank and result: close, early (more than three times sooner) or late."`
	Suspect     metric.Int64ObservableGauge   `metric:"kvpilot.chooser.suspect" unit:"1" by:"replica rank suspicion" help:"1 while a rank is avoided because it differs from its equals, by suspicion."`
	Slowness    metric.Float64ObservableGauge `metric:"kvpilot.chooser.slowness" unit:"1" by:"replica rank" help:"Time of a rank's output tokens divided by that of its equals under the same load; 0 while it is not known."`
	Trust       metric.Float64ObservableGauge `metric:"kvpilot.chooser.overlap_trust" unit:"1" by:"replica rank" help:"Share of what a rank claims to hold of prompts that counts."`
	Rate        metric.Float64ObservableGauge `metric:"kvpilot.chooser.prefill_rate" unit:"{token}/s" by:"replica rank" help:"Learned prefill rate of a rank at no context."`
	Spread      metric.Float64ObservableGauge `metric:"kvpilot.chooser.prefill_rate_uncertainty" unit:"1" by:"replica rank source" help:"Relative uncertainty of the prefill rate of a rank, by the source of the rate."`
	Tiers       tierMetrics
}

// Observe reports the ranks.
func (m *Metrics) Observe(o metric.Observer, ranks *Table) {
	m.predictions(o, ranks)
	m.rates(o, ranks)
	m.Tiers.observe(o, ranks)
}

// predictions reports the predictions by rank.
func (m *Metrics) predictions(o metric.Observer, ranks *Table) {
	names := [predictedResults]string{predictedClose: "close", predictedEarly: "early", predictedLate: "late"}
	for r := range ranks.All() {
		for result, name := range names {
			o.ObserveInt64(m.Predictions, r.Accuracy[result].Load(), instruments.Labels(
				attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("result", name)))
		}
	}
}

// rates reports each rank's learned rates.
func (m *Metrics) rates(o metric.Observer, ranks *Table) {
	for _, r := range ranks.Rates() {
		of := []attribute.KeyValue{attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Rank), attribute.String("source", r.Source.String())}
		o.ObserveFloat64(m.Rate, r.TokensPerSecond, metric.WithAttributes(of[:2]...))
		o.ObserveFloat64(m.Spread, r.Spread, metric.WithAttributes(of...))
		o.ObserveFloat64(m.Slowness, r.Conduct.Slowness, metric.WithAttributes(of[:2]...))
		o.ObserveFloat64(m.Trust, r.Conduct.Trust, metric.WithAttributes(of[:2]...))
		for _, one := range conduct.Suspicions() {
			held := int64(0)
			if r.Conduct.Suspicions&one != 0 {
				held = 1
			}
			o.ObserveInt64(m.Suspect, held, metric.WithAttributes(append(of[:2:2], attribute.String("suspicion", one.String()))...))
		}
	}
}
