package kvindex

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// newMetrics registers the index's metrics. They are read from Stats at each collection; lookups count nothing.
func newMetrics(provider metric.MeterProvider, ix *Index) {
	s := instruments.New(provider, "server/fleet/kvindex")
	held := s.ObservedGauge("kvpilot.kvindex.held", "{block}", "Blocks that can be matched, by tier.")
	blocks := s.ObservedGauge("kvpilot.kvindex.blocks", "{block}", "Blocks that ranks are known to hold.")
	budget := s.ObservedGauge("kvpilot.kvindex.budget", "{block}", "Blocks that the byte budget allows.")
	bytes := s.ObservedGauge("kvpilot.kvindex.memory", "By", "Memory of the index, by part.")
	sets := s.ObservedGauge("kvpilot.kvindex.sets", "{set}", "Distinct sets of ranks.")
	beliefs := s.ObservedGauge("kvpilot.kvindex.believed", "{block}", "Blocks believed to be held since they were routed.")
	ranks := s.ObservedGauge("kvpilot.kvindex.ranks", "{rank}", "Ranks by the state of their feed.")
	stored := s.ObservedCounter("kvpilot.kvindex.stored", "{block}", "Blocks named by stored events.")
	removed := s.ObservedCounter("kvpilot.kvindex.removed", "{block}", "Blocks named by removed events.")
	unkeyed := s.ObservedCounter("kvpilot.kvindex.unkeyed", "{block}", "Stored blocks that cannot be matched, by reason.")
	unknown := s.ObservedCounter("kvpilot.kvindex.removed_unknown", "{block}", "Removals of blocks that were not known.")
	odd := s.ObservedCounter("kvpilot.kvindex.odd_size", "{block}", "Blocks whose size differs from their rank's; they are matched only in part.")
	cut := s.ObservedCounter("kvpilot.kvindex.cut", "{block}", "Blocks left out because of the byte budget.")
	retries := s.ObservedCounter("kvpilot.kvindex.lookup_retries", "{lookup}", "Lookups restarted because of a concurrent write.")
	s.Observe(func(o metric.Observer) {
		s := ix.Stats()
		for t := range kvblock.Tier(kvblock.Tiers) {
			o.ObserveInt64(held, s.Held[t], instruments.Label("tier", t.String()))
		}
		o.ObserveInt64(blocks, s.Blocks)
		o.ObserveInt64(budget, s.MaxBlocks)
		o.ObserveInt64(bytes, s.LookupBytes, instruments.Label("part", "lookup"))
		o.ObserveInt64(bytes, s.Bytes-s.LookupBytes, instruments.Label("part", "reverse"))
		o.ObserveInt64(sets, int64(s.Sets))
		o.ObserveInt64(beliefs, s.Believed)
		o.ObserveInt64(retries, s.Retries)
		var states [kvblock.FeedDegraded + 1]int64
		for _, r := range s.Ranks {
			states[r.State]++
		}
		for state, n := range states {
			o.ObserveInt64(ranks, n, instruments.Label("state", kvblock.FeedState(state).String()))
		}
		t := s.Total
		o.ObserveInt64(stored, t.Stored)
		o.ObserveInt64(removed, t.Removed)
		o.ObserveInt64(unknown, t.UnknownRemoved)
		o.ObserveInt64(odd, t.OddSize)
		o.ObserveInt64(cut, t.Cut)
		o.ObserveInt64(unkeyed, t.Orphans, instruments.Label("reason", "unknown_parent"))
		o.ObserveInt64(unkeyed, t.Ambiguous, instruments.Label("reason", "ambiguous"))
		o.ObserveInt64(unkeyed, t.Partial, instruments.Label("reason", "partial"))
		o.ObserveInt64(unkeyed, t.Misshapen, instruments.Label("reason", "misshapen"))
	})
}
