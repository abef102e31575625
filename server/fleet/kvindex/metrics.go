package kvindex

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// metrics are read from Stats when somebody collects them; nothing is counted per lookup.
type metrics struct {
	registration metric.Registration
}

func newMetrics(provider metric.MeterProvider, ix *Index) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	b := builder{meter: provider.Meter("github.com/kvpilot/kvpilot/server/fleet/kvindex")}
	held := b.gauge("kvpilot.kvindex.held", "{block}", "Blocks that can be matched, by tier.")
	blocks := b.gauge("kvpilot.kvindex.blocks", "{block}", "Blocks that ranks are known to hold.")
	budget := b.gauge("kvpilot.kvindex.budget", "{block}", "Blocks that the byte budget allows.")
	bytes := b.gauge("kvpilot.kvindex.memory", "By", "Memory of the index, by part.")
	sets := b.gauge("kvpilot.kvindex.sets", "{set}", "Distinct sets of ranks.")
	beliefs := b.gauge("kvpilot.kvindex.believed", "{block}", "Blocks believed to be held since they were routed.")
	ranks := b.gauge("kvpilot.kvindex.ranks", "{rank}", "Ranks by the state of their feed.")
	stored := b.counter("kvpilot.kvindex.stored", "{block}", "Blocks named by stored events.")
	removed := b.counter("kvpilot.kvindex.removed", "{block}", "Blocks named by removed events.")
	unkeyed := b.counter("kvpilot.kvindex.unkeyed", "{block}", "Stored blocks that cannot be matched, by reason.")
	unknown := b.counter("kvpilot.kvindex.removed_unknown", "{block}", "Removals of blocks that were not known.")
	odd := b.counter("kvpilot.kvindex.odd_size", "{block}", "Blocks whose size differs from their rank's; they are matched only in part.")
	cut := b.counter("kvpilot.kvindex.cut", "{block}", "Blocks left out because of the byte budget.")
	retries := b.counter("kvpilot.kvindex.lookup_retries", "{lookup}", "Lookups restarted because of a concurrent write.")
	if b.err != nil {
		return nil, fmt.Errorf("kvindex: make metrics: %w", b.err)
	}
	reg, err := b.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := ix.Stats()
		label := func(key, value string) metric.ObserveOption {
			return metric.WithAttributes(attribute.String(key, value))
		}
		for t := range kvblock.Tier(kvblock.Tiers) {
			o.ObserveInt64(held, s.Held[t], label("tier", t.String()))
		}
		o.ObserveInt64(blocks, s.Blocks)
		o.ObserveInt64(budget, s.MaxBlocks)
		o.ObserveInt64(bytes, s.LookupBytes, label("part", "lookup"))
		o.ObserveInt64(bytes, s.Bytes-s.LookupBytes, label("part", "reverse"))
		o.ObserveInt64(sets, int64(s.Sets))
		o.ObserveInt64(beliefs, s.Believed)
		o.ObserveInt64(retries, s.Retries)
		states := map[kvblock.FeedState]int64{}
		for _, r := range s.Ranks {
			states[r.State]++
		}
		for state := kvblock.FeedNone; state <= kvblock.FeedDegraded; state++ {
			o.ObserveInt64(ranks, states[state], label("state", state.String()))
		}
		t := s.Total
		o.ObserveInt64(stored, t.Stored)
		o.ObserveInt64(removed, t.Removed)
		o.ObserveInt64(unknown, t.UnknownRemoved)
		o.ObserveInt64(odd, t.OddSize)
		o.ObserveInt64(cut, t.Cut)
		o.ObserveInt64(unkeyed, t.Orphans, label("reason", "unknown_parent"))
		o.ObserveInt64(unkeyed, t.Ambiguous, label("reason", "ambiguous"))
		o.ObserveInt64(unkeyed, t.Partial, label("reason", "partial"))
		o.ObserveInt64(unkeyed, t.Misshapen, label("reason", "misshapen"))
		return nil
	}, b.all...)
	if err != nil {
		return nil, fmt.Errorf("kvindex: register metrics: %w", err)
	}
	return &metrics{registration: reg}, nil
}

// builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (b *builder) gauge(name, unit, about string) metric.Int64ObservableGauge {
	g, err := b.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	b.note(g, err)
	return g
}

func (b *builder) counter(name, unit, about string) metric.Int64ObservableCounter {
	c, err := b.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	b.note(c, err)
	return c
}

func (b *builder) note(o metric.Observable, err error) {
	b.all = append(b.all, o)
	if b.err == nil {
		b.err = err
	}
}
