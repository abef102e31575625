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
	batches, connects, gaps, decodeErrors, foreign, malformed, pauses   metric.Int64Counter
	continued, events, blocks, replays, replayFailures, resets, unknown metric.Int64Counter
	lag                                                                 metric.Float64Histogram

	kinds, ops, whats, whys options
}

// options are one label's values in the form that Add takes without an allocation.
type options [][]metric.AddOption

func optionsOf(series []metric.MeasurementOption) options {
	o := make(options, len(series))
	for i, labels := range series {
		o[i] = []metric.AddOption{labels}
	}
	return o
}

func newMetrics(provider metric.MeterProvider, p *Plane) *metrics {
	s := instruments.New(provider, "server/fleet/kvevents")
	kinds := instruments.Values("kind", "stored", "removed", "cleared") // in the order of vllm.Op
	ops := instruments.Values("op", "stored", "removed")
	whats := instruments.Values("what", "field", "tag", "misfit")
	whys := instruments.Values("why", sequence.WhyNames[:]...)
	reasons := instruments.Values("reason", sequence.ReasonNames[:]...)
	m := &metrics{kinds: optionsOf(kinds), ops: optionsOf(ops), whats: optionsOf(whats), whys: optionsOf(whys)}
	m.batches = s.Counter("kvpilot.kvevents.batches", "{batch}", "Batches applied, live or replayed.")
	m.events = s.CounterBy("kvpilot.kvevents.events", "{event}", "Events applied, by kind.", kinds...)
	m.blocks = s.CounterBy("kvpilot.kvevents.blocks", "{block}", "Blocks stored and removed.", ops...)
	m.continued = s.Counter("kvpilot.kvevents.continued", "{feed}", "Feeds that continued where a snapshot or another router's index ends.")
	m.connects = s.Counter("kvpilot.kvevents.connects", "{connection}", "Connections made to event sockets.")
	m.gaps = s.Counter("kvpilot.kvevents.gaps", "{gap}", "Gaps found in the numbering of batches.")
	m.foreign = s.Counter("kvpilot.kvevents.replay.foreign", "{socket}", "Replay sockets that were found to belong to another engine than the event socket.")
	m.replays = s.CounterBy("kvpilot.kvevents.replays", "{replay}", "Replays requested, by reason.", whys...)
	m.replayFailures = s.CounterBy("kvpilot.kvevents.replay.failures", "{attempt}", "Failed attempts at a replay, by the reason of the replay.", whys...)
	m.resets = s.CounterBy("kvpilot.kvevents.resets", "{reset}", "Times that a rank's blocks were dropped, by reason.", reasons...)
	m.decodeErrors = s.Counter("kvpilot.kvevents.decode.errors", "{batch}", "Batches that could not be decoded.")
	m.malformed = s.Counter("kvpilot.kvevents.malformed", "{message}", "Messages without a batch number.")
	m.unknown = s.CounterBy("kvpilot.kvevents.unknown", "{item}", "Unknown fields and tags skipped, and stores whose tokens do not match their hashes.", whats...)
	m.pauses = s.Counter("kvpilot.kvevents.pauses", "{pause}", "Times that reading a rank's events stopped because its queue was full.")
	m.lag = s.Histogram("kvpilot.kvevents.lag", "s", "Time from a batch's arrival until it was applied.", 1e-5, 1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1, 5, 30)

	feeds := s.ObservedGauge("kvpilot.kvevents.feeds", "{rank}", "Ranks by the state of their feed.")
	queued := s.ObservedGauge("kvpilot.kvevents.queue.bytes", "By", "Memory of batches that wait to be applied.")
	depth := s.ObservedGauge("kvpilot.kvevents.queue.batches", "{batch}", "Batches that wait to be applied.")
	state := s.ObservedGauge("kvpilot.kvevents.feed.state", "{rank}", "1 for the present state of each rank's feed.")
	s.Observe(func(o metric.Observer) {
		var counts [kvblock.FeedDegraded + 1]int64
		var batches int64
		for i, s := range p.Statuses() {
			counts[s.State]++
			batches += int64(s.Queued)
			if i < maxSeries {
				o.ObserveInt64(state, 1, metric.WithAttributes(attribute.String("rank", s.Label), attribute.String("state", s.State.String())))
			}
		}
		for s, n := range counts {
			o.ObserveInt64(feeds, n, instruments.Label("state", kvblock.FeedState(s).String()))
		}
		o.ObserveInt64(queued, p.queued.Load())
		o.ObserveInt64(depth, batches)
	})
	return m
}

// applied counts a batch.
func (m *metrics) applied(b *vllm.Batch, c *contents, lag time.Duration) {
	m.batches.Add(background, 1)
	m.lag.Record(background, lag.Seconds())
	add := func(c metric.Int64Counter, o options, counts ...int) {
		for i, n := range counts {
			if n > 0 {
				c.Add(background, int64(n), o[i]...)
			}
		}
	}
	add(m.events, m.kinds, c.kinds[:]...)
	add(m.blocks, m.ops, c.stored, c.removed)
	add(m.unknown, m.whats, b.UnknownFields, b.UnknownTags, b.Misfits)
}

func (m *metrics) replay(w sequence.Why)       { m.replays.Add(background, 1, m.whys[w]...) }
func (m *metrics) replayFailed(w sequence.Why) { m.replayFailures.Add(background, 1, m.whys[w]...) }

func (m *metrics) reset(r sequence.Reason) {
	m.resets.Add(background, 1, instruments.Label("reason", sequence.ReasonNames[r]))
}
