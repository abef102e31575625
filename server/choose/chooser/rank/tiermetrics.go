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
	Share metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_found" unit:"1" by:"replica rank tier" help:"Share of the prompt tokens in a tier below a rank's GPU, by the index, that the engine has found, over the last requests."`
	Start metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_load_start" unit:"s" by:"replica rank tier" help:"Predicted time of a load of KV cache of no tokens from a tier below a rank's GPU."`
	Each  metric.Float64ObservableGauge `metric:"kvpilot.chooser.tier_load_token_time" unit:"s" by:"replica rank tier" help:"Predicted time of each token of a load of KV cache from a tier below a rank's GPU."`
}

func (m *tierMetrics) observe(o metric.Observer, ranks *Table) {
	for r := range ranks.All() {
		for tier, one := range map[kvblock.Tier]*transfer.Tier{kvblock.TierCPU: r.Tiers.Host, kvblock.TierDisk: r.Tiers.Store} {
			if one.Seen() == 0 {
				continue
			}
			times := one.Model()
			of := instruments.Labels(attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("tier", tier.String()))
			o.ObserveFloat64(m.Share, one.Share(), of)
			o.ObserveFloat64(m.Start, times.Start, of)
			o.ObserveFloat64(m.Each, times.PerToken, of)
		}
	}
}
