package kvevents

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

// maxSeries bounds the ranks that have a series of their own.
const maxSeries = 1024

// metrics counts what the feeds do. Attribute sets are made once: the hot path adds to them only.
type metrics struct {
	batches, connects, gaps, decodeErrors, malformed, dropped metric.Int64Counter
	events, blocks, replays, replayFailures, resets, unknown  metric.Int64Counter
	lag                                                       metric.Float64Histogram
	registration                                              metric.Registration

	stored, removed, cleared    []metric.AddOption
	fields, tags, misfits       []metric.AddOption
	storedBlocks, removedBlocks []metric.AddOption
	reasons                     map[string][]metric.AddOption
	whys                        [whyRebuild + 1][]metric.AddOption
}

func newMetrics(provider metric.MeterProvider, p *Plane) *metrics {
	m := &metrics{}
	b := builder{meter: provider.Meter("github.com/kvpilot/kvpilot/server/fleet/kvevents")}
	m.batches = b.counter("batches", "{batch}", "Batches applied, live or replayed.")
	m.events = b.counter("events", "{event}", "Events applied, by kind.")
	m.blocks = b.counter("blocks", "{block}", "Blocks stored and removed.")
	m.connects = b.counter("connects", "{connection}", "Connections made to event sockets.")
	m.gaps = b.counter("gaps", "{gap}", "Gaps found in the numbering of batches.")
	m.replays = b.counter("replays", "{replay}", "Replays requested, by reason.")
	m.replayFailures = b.counter("replay.failures", "{attempt}", "Failed attempts at a replay, by the reason of the replay.")
	m.resets = b.counter("resets", "{reset}", "Times that a rank's blocks were forgotten, by reason.")
	m.decodeErrors = b.counter("decode.errors", "{batch}", "Batches that could not be read.")
	m.malformed = b.counter("malformed", "{message}", "Messages without a batch number.")
	m.unknown = b.counter("unknown", "{item}", "Unknown fields and tags skipped, and stores whose tokens do not match their hashes.")
	m.dropped = b.counter("dropped", "{batch}", "Batches dropped because the queue was full; a replay fetches them again.")
	m.lag = b.histogram("lag", "Time from a batch's arrival until it was applied.")
	m.attributes()

	feeds := b.gauge("feeds", "{rank}", "Ranks by the state of their feed.")
	queued := b.gauge("queue.bytes", "By", "Memory of batches that wait to be applied.")
	depth := b.gauge("queue.batches", "{batch}", "Batches that wait to be applied.")
	state := b.gauge("feed.state", "{rank}", "One for the present state of each rank's feed.")
	var err error
	m.registration, err = b.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		observe(o, p, feeds, queued, depth, state)
		return nil
	}, feeds, queued, depth, state)
	if err != nil {
		m.registration = nil // instruments of another meter: impossible by construction
	}
	return m
}

// attributes prepares every attribute set and starts its series at zero.
func (m *metrics) attributes() {
	with := func(key, value string) []metric.AddOption {
		return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))}
	}
	m.stored, m.removed, m.cleared = with("kind", "stored"), with("kind", "removed"), with("kind", "cleared")
	m.storedBlocks, m.removedBlocks = with("op", "stored"), with("op", "removed")
	m.fields, m.tags, m.misfits = with("what", "field"), with("what", "tag"), with("what", "misfit")
	m.reasons = map[string][]metric.AddOption{}
	for _, reason := range []string{"gap", "restart", "unreadable", "unreachable", "rebuild", "no feed"} {
		m.reasons[reason] = with("reason", reason)
		m.resets.Add(background, 0, m.reasons[reason]...)
	}
	for w := range m.whys {
		m.whys[w] = with("why", why(w).String())
		m.replays.Add(background, 0, m.whys[w]...)
		m.replayFailures.Add(background, 0, m.whys[w]...)
	}
	for _, kind := range [][]metric.AddOption{m.stored, m.removed, m.cleared} {
		m.events.Add(background, 0, kind...)
	}
	m.blocks.Add(background, 0, m.storedBlocks...)
	m.blocks.Add(background, 0, m.removedBlocks...)
	for _, what := range [][]metric.AddOption{m.fields, m.tags, m.misfits} {
		m.unknown.Add(background, 0, what...)
	}
	for _, c := range []metric.Int64Counter{m.batches, m.connects, m.gaps, m.decodeErrors, m.malformed, m.dropped} {
		c.Add(background, 0)
	}
}

func (m *metrics) batch(b *vllm.Batch, stored, removed int, lag time.Duration) {
	m.batches.Add(background, 1)
	m.lag.Record(background, lag.Seconds())
	var kinds [3]int64
	for i := range b.Events {
		kinds[b.Events[i].Op]++
	}
	add := func(c metric.Int64Counter, n int, o []metric.AddOption) {
		if n > 0 {
			c.Add(background, int64(n), o...)
		}
	}
	add(m.events, int(kinds[vllm.OpStored]), m.stored)
	add(m.events, int(kinds[vllm.OpRemoved]), m.removed)
	add(m.events, int(kinds[vllm.OpCleared]), m.cleared)
	add(m.blocks, stored, m.storedBlocks)
	add(m.blocks, removed, m.removedBlocks)
	add(m.unknown, b.UnknownFields, m.fields)
	add(m.unknown, b.UnknownTags, m.tags)
	add(m.unknown, b.Misfits, m.misfits)
}

func (m *metrics) reset(reason string) { m.resets.Add(background, 1, m.reasons[reason]...) }
func (m *metrics) replay(w why)        { m.replays.Add(background, 1, m.whys[w]...) }
func (m *metrics) replayFailed(w why)  { m.replayFailures.Add(background, 1, m.whys[w]...) }

func (m *metrics) close() {
	if m.registration != nil {
		_ = m.registration.Unregister() // the provider is going away with us
	}
}

// observe reports the gauges.
func observe(o metric.Observer, p *Plane, feeds, queued, depth, state metric.Int64ObservableGauge) {
	counts := map[kvblock.FeedState]int64{kvblock.FeedNone: 0, kvblock.FeedCold: 0, kvblock.FeedExact: 0, kvblock.FeedDegraded: 0}
	var batches int64
	for i, s := range p.Statuses() {
		counts[s.State]++
		batches += int64(s.Queued)
		if i < maxSeries {
			o.ObserveInt64(state, 1, metric.WithAttributes(attribute.String("rank", s.Label), attribute.String("state", s.State.String())))
		}
	}
	for s, n := range counts {
		o.ObserveInt64(feeds, n, metric.WithAttributes(attribute.String("state", s.String())))
	}
	o.ObserveInt64(queued, p.queued.Load())
	o.ObserveInt64(depth, batches)
}

// builder makes instruments; one that the meter refuses becomes a no-op, so that a name clash costs a
// metric and not the router.
type builder struct{ meter metric.Meter }

func (b builder) counter(name, unit, help string) metric.Int64Counter {
	c, err := b.meter.Int64Counter("kvpilot.kvevents."+name, metric.WithUnit(unit), metric.WithDescription(help))
	if err != nil {
		return noop.Int64Counter{}
	}
	return c
}

func (b builder) gauge(name, unit, help string) metric.Int64ObservableGauge {
	g, err := b.meter.Int64ObservableGauge("kvpilot.kvevents."+name, metric.WithUnit(unit), metric.WithDescription(help))
	if err != nil {
		return noop.Int64ObservableGauge{}
	}
	return g
}

func (b builder) histogram(name, help string) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram("kvpilot.kvevents."+name, metric.WithUnit("s"), metric.WithDescription(help),
		metric.WithExplicitBucketBoundaries(1e-5, 1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1, 5, 30))
	if err != nil {
		return noop.Float64Histogram{}
	}
	return h
}
