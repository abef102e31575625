package rank

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// NewTierMetrics declares the tiers below the ranks' GPUs, and returns the function that reads them. Tiers that no request has used have no series.
func NewTierMetrics(s *instruments.Set, ranks *Table) (observe func(metric.Observer)) {
	share := s.ObservedFloat("kvpilot.chooser.tier_found", "1", "Share of the prompt tokens in a tier below a rank's GPU, by the index, that the engine has found, over the last requests.")
	start := s.ObservedFloat("kvpilot.chooser.tier_load_start", "s", "Predicted time of a load of KV cache of no tokens from a tier below a rank's GPU.")
	each := s.ObservedFloat("kvpilot.chooser.tier_load_token_time", "s", "Predicted time of each token of a load of KV cache from a tier below a rank's GPU.")
	return func(o metric.Observer) {
		for r := range ranks.All() {
			for tier, one := range map[kvblock.Tier]*transfer.Tier{kvblock.TierCPU: r.Tiers.Host, kvblock.TierDisk: r.Tiers.Store} {
				if one.Seen() == 0 {
					continue
				}
				m := one.Model()
				of := instruments.Labels(attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("tier", tier.String()))
				o.ObserveFloat64(share, one.Share(), of)
				o.ObserveFloat64(start, m.Start, of)
				o.ObserveFloat64(each, m.PerToken, of)
			}
		}
	}
}
