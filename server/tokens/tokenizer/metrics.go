package tokenizer

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

type metrics struct {
	stage  metric.Float64Histogram
	result metric.Int64Counter
	shared metric.Int64Counter
	gave   metric.Int64Counter
	differ metric.Int64Counter
	// skipped counts background work left out, broken the rules about conversations that failed.
	skipped metric.Int64Counter
	broken  metric.Int64Counter
	// waited counts the prompts that waited because their known beginning was older than the turn before.
	waited metric.Int64Counter

	models  *labels.Names
	stages  labels.Sets[string]
	results labels.Sets[sourceLabels]
	given   labels.Sets[handoffLabels]
}

// mostModels bounds the models with series of their own, for fleets that load and unload adapters for years.
const mostModels = 200

func newMetrics(provider metric.MeterProvider, stats func() cache.Stats, held func() int64) *metrics {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/tokens/tokenizer")
	m := &metrics{models: labels.NewNames(mostModels)}
	// An instrument with a constant, valid name cannot fail to be made.
	m.stage, _ = meter.Float64Histogram("kvpilot.tokenizer.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that a request waited for its ids, by source."),
		metric.WithExplicitBucketBoundaries(.00001, .00005, .0001, .0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	m.result, _ = meter.Int64Counter("kvpilot.tokenizer.encodings", metric.WithUnit("{prompt}"),
		metric.WithDescription("Prompts by the source of their ids, and the reason when there are none."))
	m.shared, _ = meter.Int64Counter("kvpilot.tokenizer.shared", metric.WithUnit("{prompt}"),
		metric.WithDescription("Prompts that joined a call in progress."))
	m.shared.Add(context.Background(), 0)
	m.gave, _ = meter.Int64Counter("kvpilot.tokenizer.handoffs", metric.WithUnit("{prompt}"),
		metric.WithDescription("Decisions whether to send ids to the engine, by form and reason."))
	m.differ, _ = meter.Int64Counter("kvpilot.tokenizer.parity.mismatches", metric.WithUnit("{prompt}"),
		metric.WithDescription("Prompts whose ids differ from the engine's."))
	m.skipped, _ = meter.Int64Counter("kvpilot.tokenizer.background.skipped", metric.WithUnit("{prompt}"),
		metric.WithDescription("Encodings not completed in the background because too many were queued."))
	m.broken, _ = meter.Int64Counter("kvpilot.tokenizer.conversation.broken", metric.WithUnit("{turn}"),
		metric.WithDescription("Turns whose known beginning was not a prefix of the full prompt."))
	m.waited, _ = meter.Int64Counter("kvpilot.tokenizer.conversation.older", metric.WithUnit("{prompt}"),
		metric.WithDescription("Prompts that waited for all ids because only an older turn was known, by outcome: whole, late or failed."))
	for _, outcome := range [...]string{olderWhole, olderLate, olderFailed} {
		m.waited.Add(context.Background(), 0, metric.WithAttributes(attribute.String("outcome", outcome)))
	}
	m.skipped.Add(context.Background(), 0)
	m.broken.Add(context.Background(), 0)
	bytes, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.cache.size", metric.WithUnit("By"), metric.WithDescription("Memory of the cache of encodings."))
	items, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.cache.items", metric.WithUnit("{encoding}"), metric.WithDescription("Encodings in the cache."))
	evicted, _ := meter.Int64ObservableCounter("kvpilot.tokenizer.cache.evictions", metric.WithUnit("{encoding}"), metric.WithDescription("Encodings evicted."))
	holds, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.held", metric.WithUnit("By"), metric.WithDescription("Memory of the encodings that requests in flight hold."))
	_, _ = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		o.ObserveInt64(bytes, s.Bytes)
		o.ObserveInt64(items, int64(s.Items))
		o.ObserveInt64(evicted, s.Evictions)
		o.ObserveInt64(holds, held())
		return nil
	}, bytes, items, evicted, holds)
	return m
}

// Labels of the measurements that every request makes.
type (
	sourceLabels  struct{ model, source, reason string }
	handoffLabels struct{ model, form, reason string }
)

func (m *metrics) encoded(model, source, reason string, took time.Duration) {
	ctx := context.Background() // makes no exemplar
	m.stage.Record(ctx, took.Seconds(), m.stages.Of(source, func(source string) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("source", source)}
	}))
	m.result.Add(ctx, 1, m.results.Of(sourceLabels{m.models.Of(model), source, reason}, func(l sourceLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("model", l.model), attribute.String("source", l.source), attribute.String("reason", l.reason)}
	}))
}

func (m *metrics) older(outcome string) {
	m.waited.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

func (m *metrics) handoff(model string, h Handoff) {
	m.gave.Add(context.Background(), 1, m.given.Of(handoffLabels{m.models.Of(model), string(h.Form), h.Reason}, func(l handoffLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("model", l.model), attribute.String("form", l.form), attribute.String("reason", l.reason)}
	}))
}

// known makes a model's count of mismatches exist before there is one, so that its increase is seen.
func (m *metrics) known(model string) {
	m.differ.Add(context.Background(), 0, metric.WithAttributes(attribute.String("model", m.models.Of(model))))
}

func (m *metrics) mismatch(model string) {
	m.differ.Add(context.Background(), 1, metric.WithAttributes(attribute.String("model", m.models.Of(model))))
}
