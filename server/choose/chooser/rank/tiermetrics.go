package rank

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// tierMetrics show the tiers below the ranks' GPUs. Tiers that no request has used have no series.
type tierMetrics struct {
	Share   metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_found" unit:"1" by:"replica rank tier" help:"Share of the prompt tokens in a tier below a rank's GPU, by the index, or (tier directory) by a directory alone, that the engine has found, over the last requests."`
	Start   metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_load_start" unit:"s" by:"replica rank tier" help:"Predicted time of a load of KV cache of no tokens from a tier below a rank's GPU."`
	Each    metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_load_token_time" unit:"s" by:"replica rank tier" help:"Predicted time of each token of a load of KV cache from a tier below a rank's GPU."`
	Fetched metric.Float64ObservableGauge `metric:"kvpilot.chooser.fetched" unit:"1" by:"replica rank" help:"Share of the prompt tokens that a rank's requests were to fetch, from tiers below its GPU or from other engines, and that its engine counts as fetched, over the last requests."`
}

func (m *tierMetrics) observe(o metric.Observer, ranks *Table) {
	for r := range ranks.All() {
		if r.Fetches.Seen() > 0 {
			o.ObserveFloat64(m.Fetched, r.Fetches.Share(), r.Labels)
		}
		labels := func(tier string) metric.MeasurementOption {
			return instruments.Labels(attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("tier", tier))
		}
		if r.Tiers.Named.Seen() > 0 {
			o.ObserveFloat64(m.Share, r.Tiers.Named.Share(), labels("directory"))
		}
		for tier, one := range map[kvblock.Tier]*transfer.Tier{kvblock.TierCPU: r.Tiers.Host, kvblock.TierDisk: r.Tiers.Store} {
			times, of := one.Model(), labels(tier.String())
			if one.Seen() > 0 {
				o.ObserveFloat64(m.Share, one.Share(), of)
			}
			if one.Seen()+int64(times.Samples) > 0 {
				o.ObserveFloat64(m.Start, times.Start, of)
				o.ObserveFloat64(m.Each, times.PerToken, of)
			}
		}
	}
}
