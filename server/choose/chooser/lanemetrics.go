package chooser

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// laneMetrics show the learned times of transfers.
type laneMetrics struct {
	Start metric.Float64ObservableGauge `metric:"kvpilot.chooser.transfer_start" unit:"s" by:"from to" help:"Predicted time of a transfer of KV cache of no tokens, by the network domains that it comes from and goes to."`
	Each  metric.Float64ObservableGauge `metric:"kvpilot.chooser.transfer_token_time" unit:"s" by:"from to" help:"Predicted time of each token of a transfer of KV cache, by the network domains that it comes from and goes to."`
}

func (m *laneMetrics) observe(o metric.Observer, lanes *transfer.Lanes) {
	for _, lane := range lanes.List() {
		times := lane.Model()
		of := instruments.Labels(attribute.String("from", lane.From), attribute.String("to", lane.To))
		o.ObserveFloat64(m.Start, times.Start, of)
		o.ObserveFloat64(m.Each, times.PerToken, of)
	}
}
