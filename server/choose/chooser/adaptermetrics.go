package chooser

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// adapterMetrics show the record of LoRA adapters.
type adapterMetrics struct {
	Held metric.Int64ObservableGauge   `metric:"kvpilot.chooser.adapters" unit:"{adapter}" by:"replica rank state" help:"LoRA adapters in a rank's GPU memory, as believed, by state: running or idle; free are the slots left."`
	Load metric.Float64ObservableGauge `metric:"kvpilot.chooser.adapter_load_time" unit:"s" by:"replica rank" help:"Learned time to load a LoRA adapter on a rank."`
}

func (m *adapterMetrics) observe(o metric.Observer, ranks *rank.Table, record *adapters.Fleet) {
	for _, h := range record.Ranks() {
		rk := ranks.At(h.Slot)
		if rk == nil {
			continue
		}
		of := []attribute.KeyValue{attribute.String("replica", string(rk.Replica)), attribute.Int("rank", rk.Index)}
		state := func(name string, n int) {
			o.ObserveInt64(m.Held, int64(n), instruments.Labels(of[0], of[1], attribute.String("state", name)))
		}
		state("running", h.Running)
		state("idle", h.Resident-h.Running)
		if h.Slots > 0 {
			state("free", max(0, h.Slots-h.Resident))
		}
		o.ObserveFloat64(m.Load, h.Load, instruments.Labels(of...))
	}
}
