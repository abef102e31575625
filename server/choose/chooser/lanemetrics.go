package chooser

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// newLaneMetrics declares the learned times of transfers, and returns the function that reads it.
func newLaneMetrics(s *instruments.Set, lanes *transfer.Lanes) (observe func(metric.Observer)) {
	start := s.ObservedFloat("kvpilot.chooser.transfer_start", "s", "Predicted time of a transfer of KV cache of no tokens, by the network domains that it comes from and goes to.")
	each := s.ObservedFloat("kvpilot.chooser.transfer_token_time", "s", "Predicted time of each token of a transfer of KV cache, by the network domains that it comes from and goes to.")
	return func(o metric.Observer) {
		for _, lane := range lanes.List() {
			m := lane.Model()
			of := instruments.Labels(attribute.String("from", lane.From), attribute.String("to", lane.To))
			o.ObserveFloat64(start, m.Start, of)
			o.ObserveFloat64(each, m.PerToken, of)
		}
	}
}
