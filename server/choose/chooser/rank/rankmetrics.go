package rank

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// NewAccuracyMetrics declares the predictions by rank, and returns the function that reads them. The series of a rank go with it.
func NewAccuracyMetrics(s *instruments.Set, ranks *Table) (observe func(metric.Observer)) {
	predictions := s.ObservedCounter("kvpilot.chooser.predictions", "{prediction}", "Predicted first tokens of streamed requests by rank and result: close, early (more than three times sooner) or late.")
	names := [predictedResults]string{predictedClose: "close", predictedEarly: "early", predictedLate: "late"}
	return func(o metric.Observer) {
		for r := range ranks.All() {
			for result, name := range names {
				o.ObserveInt64(predictions, r.Accuracy[result].Load(), instruments.Labels(
					attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("result", name)))
			}
		}
	}
}

// NewRateMetrics declares each rank's learned rates, and returns the function that reads it.
func NewRateMetrics(s *instruments.Set, ranks *Table) (observe func(metric.Observer)) {
	suspect := s.ObservedGauge("kvpilot.chooser.suspect", "1", "1 while a rank is avoided because it differs from its equals, by suspicion.")
	slowness := s.ObservedFloat("kvpilot.chooser.slowness", "1", "Time of a rank's output tokens divided by that of its equals under the same load; 0 while it is not known.")
	trust := s.ObservedFloat("kvpilot.chooser.overlap_trust", "1", "Share of what a rank claims to hold of prompts that counts.")
	rate := s.ObservedFloat("kvpilot.chooser.prefill_rate", "{token}/s", "Learned prefill rate of a rank at no context.")
	spread := s.ObservedFloat("kvpilot.chooser.prefill_rate_uncertainty", "1", "Relative uncertainty of the prefill rate of a rank, by the source of the rate.")
	return func(o metric.Observer) {
		for _, r := range ranks.Rates() {
			of := []attribute.KeyValue{attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Rank), attribute.String("source", r.Source.String())}
			o.ObserveFloat64(rate, r.TokensPerSecond, metric.WithAttributes(of[:2]...))
			o.ObserveFloat64(spread, r.Spread, metric.WithAttributes(of...))
			o.ObserveFloat64(slowness, r.Conduct.Slowness, metric.WithAttributes(of[:2]...))
			o.ObserveFloat64(trust, r.Conduct.Trust, metric.WithAttributes(of[:2]...))
			for _, one := range conduct.Suspicions() {
				held := int64(0)
				if r.Conduct.Suspicions&one != 0 {
					held = 1
				}
				o.ObserveInt64(suspect, held, metric.WithAttributes(append(of[:2:2], attribute.String("suspicion", one.String()))...))
			}
		}
	}
}
