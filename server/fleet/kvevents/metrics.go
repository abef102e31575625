package kvevents

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// maxSeries bounds the ranks that have a series of their own.
const maxSeries = 1024

// background is the context of metric calls, which carry nothing.
var background = context.Background()

// metrics counts the work of the feeds.
type metrics struct {
	Batches        metric.Int64Counter                `metric:"kvpilot.kvevents.batches" unit:"{batch}" help:"Batches applied, live or replayed."`
	Events         instruments.Keyed[string]          `metric:"kvpilot.kvevents.events" unit:"{event}" by:"kind" values:"stored removed cleared" help:"Events applied, by kind."`
	Blocks         instruments.Keyed[string]          `metric:"kvpilot.kvevents.blocks" unit:"{block}" by:"op" values:"stored removed" help:"Blocks stored and removed."`
	Continued      metric.Int64Counter                `metric:"kvpilot.kvevents.continued" unit:"{feed}" help:"Feeds that continued where a snapshot or another router's index ends."`
	Connects       metric.Int64Counter                `metric:"kvpilot.kvevents.connects" unit:"{connection}" help:"Connections made to event sockets."`
	Gaps           metric.Int64Counter                `metric:"kvpilot.kvevents.gaps" unit:"{gap}" help:"Gaps found in the numbering of batches."`
	Foreign        metric.Int64Counter                `metric:"kvpilot.kvevents.replay.foreign" unit:"{socket}" help:"Replay sockets that were found to belong to another engine than the event socket."`
	Replays        instruments.Keyed[sequence.Why]    `metric:"kvpilot.kvevents.replays" unit:"{replay}" by:"why" help:"Replays requested, by reason."`
	ReplayFailures instruments.Keyed[sequence.Why]    `metric:"kvpilot.kvevents.replay.failures" unit:"{attempt}" by:"why" help:"Failed attempts at a replay, by the reason of the replay."`
	Resets         instruments.Keyed[sequence.Reason] `metric:"kvpilot.kvevents.resets" unit:"{reset}" by:"reason" help:"Times that a rank's blocks were dropped, by reason."`
	DecodeErrors   metric.Int64Counter                `metric:"kvpilot.kvevents.decode.errors" unit:"{batch}" help:"Batches that could not be decoded."`
	Malformed      metric.Int64Counter                `metric:"kvpilot.kvevents.malformed" unit:"{message}" help:"Messages without a batch number."`
	Unknown        instruments.Keyed[string]          `metric:"kvpilot.kvevents.unknown" unit:"{item}" by:"what" values:"field tag misfit" help:"Unknown fields and tags skipped, and stores whose tokens do not match their hashes."`
	Pauses         metric.Int64Counter                `metric:"kvpilot.kvevents.pauses" unit:"{pause}" help:"Times that reading a rank's events stopped because its queue was full."`
	Lag            metric.Float64Histogram            `metric:"kvpilot.kvevents.lag" unit:"s" bounds:"1e-5 1e-4 5e-4 1e-3 2.5e-3 5e-3 1e-2 5e-2 0.25 1 5 30" help:"Time from a batch's arrival until it was applied."`

	Feeds  metric.Int64ObservableGauge `metric:"kvpilot.kvevents.feeds" unit:"{rank}" by:"state" help:"Ranks by the state of their feed."`
	Queued metric.Int64ObservableGauge `metric:"kvpilot.kvevents.queue.bytes" unit:"By" help:"Memory of batches that wait to be applied."`
	Depth  metric.Int64ObservableGauge `metric:"kvpilot.kvevents.queue.batches" unit:"{batch}" help:"Batches that wait to be applied."`
	State  metric.Int64ObservableGauge `metric:"kvpilot.kvevents.feed.state" unit:"{rank}" by:"rank state" help:"1 for the present state of each rank's feed."`
}

func newMetrics(provider metric.MeterProvider, p *Plane) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/fleet/kvevents", m)
	m.Replays.Know(sequence.Whys()...)
	m.ReplayFailures.Know(sequence.Whys()...)
	m.Resets.Know(sequence.Reasons()...)
	s.Observe(func(o metric.Observer) {
		var counts [kvblock.FeedDegraded + 1]int64
		var batches int64
		for i, s := range p.Statuses() {
			counts[s.State]++
			batches += int64(s.Queued)
			if i < maxSeries {
				o.ObserveInt64(m.State, 1, metric.WithAttributes(attribute.String("rank", s.Label), attribute.String("state", s.State.String())))
			}
		}
		for s, n := range counts {
			o.ObserveInt64(m.Feeds, n, instruments.Label("state", kvblock.FeedState(s).String()))
		}
		o.ObserveInt64(m.Queued, p.queued.Load())
		o.ObserveInt64(m.Depth, batches)
	})
	return m
}

// applied counts a batch.
func (m *metrics) applied(b *vllm.Batch, c *contents, lag time.Duration) {
	m.Batches.Add(background, 1)
	m.Lag.Record(background, lag.Seconds())
	count := func(c *instruments.Keyed[string], key string, n int) {
		if n > 0 {
			c.Count(key, int64(n))
		}
	}
	count(&m.Events, "stored", c.kinds[vllm.OpStored])
	count(&m.Events, "removed", c.kinds[vllm.OpRemoved])
	count(&m.Events, "cleared", c.kinds[vllm.OpCleared])
	count(&m.Blocks, "stored", c.stored)
	count(&m.Blocks, "removed", c.removed)
	count(&m.Unknown, "field", b.UnknownFields)
	count(&m.Unknown, "tag", b.UnknownTags)
	count(&m.Unknown, "misfit", b.Misfits)
}
