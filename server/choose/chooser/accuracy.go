package chooser

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// off is the factor from which on a predicted first token counts as wrong.
const off = 3

// The results of a prediction.
const (
	predictedClose = iota
	predictedEarly // it came much sooner
	predictedLate  // it came much later
	predictedResults
)

// accuracy counts the predicted first tokens of one rank by result. Its zero value is ready.
type accuracy [predictedResults]atomic.Int64

// add counts a prediction by its ratio to the actual time.
func (a *accuracy) add(ratio float64) {
	switch {
	case ratio > off:
		a[predictedEarly].Add(1)
	case ratio < 1./off:
		a[predictedLate].Add(1)
	default:
		a[predictedClose].Add(1)
	}
}

// newAccuracyMetrics declares the predictions by rank, and returns the function that reads them. The series of a rank go with it.
func newAccuracyMetrics(s *instruments.Set, ranks *rankTable) (observe func(metric.Observer)) {
	predictions := s.ObservedCounter("kvpilot.chooser.predictions", "{prediction}", "Predicted first tokens of streamed requests by rank and result: close, early (it came more than three times sooner) or late (more than three times later).")
	names := [predictedResults]string{predictedClose: "close", predictedEarly: "early", predictedLate: "late"}
	return func(o metric.Observer) {
		for r := range ranks.all() {
			for result, name := range names {
				o.ObserveInt64(predictions, r.accuracy[result].Load(), instruments.Labels(
					attribute.String("replica", string(r.replica)), attribute.Int("rank", r.index), attribute.String("result", name)))
			}
		}
	}
}
