package chooser

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// newAdapterMetrics declares the record of LoRA adapters, and returns the function that reads it.
func newAdapterMetrics(s *instruments.Set, ranks *rank.Table, record *adapters.Fleet) (observe func(metric.Observer)) {
	held := s.ObservedGauge("kvpilot.chooser.adapters", "{adapter}", "LoRA adapters in a rank's GPU memory, as believed, by state: running or idle; free are the slots left.")
	load := s.ObservedFloat("kvpilot.chooser.adapter_load_time", "s", "Learned time to load a LoRA adapter on a rank.")
	return func(o metric.Observer) {
		for _, h := range record.Ranks() {
			rk := ranks.At(h.Slot)
			if rk == nil {
				continue
			}
			of := []attribute.KeyValue{attribute.String("replica", string(rk.Replica)), attribute.Int("rank", rk.Index)}
			state := func(name string, n int) {
				o.ObserveInt64(held, int64(n), instruments.Labels(of[0], of[1], attribute.String("state", name)))
			}
			state("running", h.Running)
			state("idle", h.Resident-h.Running)
			if h.Slots > 0 {
				state("free", max(0, h.Slots-h.Resident))
			}
			o.ObserveFloat64(load, h.Load, instruments.Labels(of...))
		}
	}
}
