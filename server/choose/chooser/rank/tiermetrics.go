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
	share := s.ObservedFloat("kvpilot.chooser.tier_found", "1", "Share of the prompt tokens that the index knows in a tier below a rank's GPU, or (tier directory) that only a directory names there, and that the engine has found, over the last requests.")
	start := s.ObservedFloat("kvpilot.chooser.tier_load_start", "s", "Predicted time of a load of KV cache of no tokens from a tier below a rank's GPU.")
	each := s.ObservedFloat("kvpilot.chooser.tier_load_token_time", "s", "Predicted time of each token of a load of KV cache from a tier below a rank's GPU.")
	fetched := s.ObservedFloat("kvpilot.chooser.fetched", "1", "Share of the prompt tokens that a rank's requests were to fetch, from tiers below its GPU or from other engines, and that its engine counts as fetched, over the last requests.")
	return func(o metric.Observer) {
		for r := range ranks.All() {
			if r.Fetches.Seen() > 0 {
				o.ObserveFloat64(fetched, r.Fetches.Share(), r.Labels)
			}
			labels := func(tier string) metric.MeasurementOption {
				return instruments.Labels(attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Index), attribute.String("tier", tier))
			}
			if r.Tiers.Named.Seen() > 0 {
				o.ObserveFloat64(share, r.Tiers.Named.Share(), labels("directory"))
			}
			for tier, one := range map[kvblock.Tier]*transfer.Tier{kvblock.TierCPU: r.Tiers.Host, kvblock.TierDisk: r.Tiers.Store} {
				m, of := one.Model(), labels(tier.String())
				if one.Seen() > 0 {
					o.ObserveFloat64(share, one.Share(), of)
				}
				if one.Seen()+int64(m.Samples) == 0 {
					continue
				}
				o.ObserveFloat64(start, m.Start, of)
				o.ObserveFloat64(each, m.PerToken, of)
			}
		}
	}
}
