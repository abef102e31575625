package kvindex

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are read from Stats at each collection; lookups count nothing.
type metrics struct {
	Held    metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.held" unit:"{block}" by:"tier" help:"Blocks that can be matched, by tier."`
	Blocks  metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.blocks" unit:"{block}" help:"Blocks that ranks are known to hold."`
	Budget  metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.budget" unit:"{block}" help:"Blocks that the byte budget allows."`
	Bytes   metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.memory" unit:"By" by:"part" help:"Memory of the index, by part."`
	Sets    metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.sets" unit:"{set}" help:"Distinct sets of ranks."`
	Beliefs metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.believed" unit:"{block}" help:"Blocks believed to be held since they were routed."`
	Ranks   metric.Int64ObservableGauge   `metric:"kvpilot.kvindex.ranks" unit:"{rank}" by:"state" help:"Ranks by the state of their feed."`
	Stored  metric.Int64ObservableCounter `metric:"kvpilot.kvindex.stored" unit:"{block}" help:"Blocks named by stored events."`
	Removed metric.Int64ObservableCounter `metric:"kvpilot.kvindex.removed" unit:"{block}" help:"Blocks named by removed events."`
	Unkeyed metric.Int64ObservableCounter `metric:"kvpilot.kvindex.unkeyed" unit:"{block}" by:"reason" help:"Stored blocks that cannot be matched, by reason."`
	Unknown metric.Int64ObservableCounter `metric:"kvpilot.kvindex.removed_unknown" unit:"{block}" help:"Removals of blocks that were not known."`
	Odd     metric.Int64ObservableCounter `metric:"kvpilot.kvindex.odd_size" unit:"{block}" help:"Blocks whose size differs from their rank's; they are matched only in part."`
	Cut     metric.Int64ObservableCounter `metric:"kvpilot.kvindex.cut" unit:"{block}" help:"Blocks left out because of the byte budget."`
	Retries metric.Int64ObservableCounter `metric:"kvpilot.kvindex.lookup_retries" unit:"{lookup}" help:"Lookups restarted because of a concurrent write."`
}

// observe has the metrics read.
func (ix *Index) observe(provider metric.MeterProvider) {
	var m metrics
	instruments.Declare(provider, "server/fleet/kvindex", &m).Observe(func(o metric.Observer) {
		s := ix.Stats()
		for t := range kvblock.Tier(kvblock.Tiers) {
			o.ObserveInt64(m.Held, s.Held[t], instruments.Label("tier", t.String()))
		}
		o.ObserveInt64(m.Blocks, s.Blocks)
		o.ObserveInt64(m.Budget, s.MaxBlocks)
		o.ObserveInt64(m.Bytes, s.LookupBytes, instruments.Label("part", "lookup"))
		o.ObserveInt64(m.Bytes, s.Bytes-s.LookupBytes, instruments.Label("part", "reverse"))
		o.ObserveInt64(m.Sets, int64(s.Sets))
		o.ObserveInt64(m.Beliefs, s.Believed)
		o.ObserveInt64(m.Retries, s.Retries)
		var states [kvblock.FeedDegraded + 1]int64
		for _, r := range s.Ranks {
			states[r.State]++
		}
		for state, n := range states {
			o.ObserveInt64(m.Ranks, n, instruments.Label("state", kvblock.FeedState(state).String()))
		}
		t := s.Total
		o.ObserveInt64(m.Stored, t.Stored)
		o.ObserveInt64(m.Removed, t.Removed)
		o.ObserveInt64(m.Unknown, t.UnknownRemoved)
		o.ObserveInt64(m.Odd, t.OddSize)
		o.ObserveInt64(m.Cut, t.Cut)
		o.ObserveInt64(m.Unkeyed, t.Orphans, instruments.Label("reason", "unknown_parent"))
		o.ObserveInt64(m.Unkeyed, t.Ambiguous, instruments.Label("reason", "ambiguous"))
		o.ObserveInt64(m.Unkeyed, t.Partial, instruments.Label("reason", "partial"))
		o.ObserveInt64(m.Unkeyed, t.Misshapen, instruments.Label("reason", "misshapen"))
	})
}
