package tokenizer

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

type metrics struct {
	Stage  metric.Float64Histogram `metric:"kvpilot.tokenizer.duration" unit:"s" by:"source" bounds:"0.00001 0.00005 0.0001 0.0005 0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 5" help:"Time that a request waited for its ids, by source."`
	Result metric.Int64Counter     `metric:"kvpilot.tokenizer.encodings" unit:"{prompt}" by:"model source reason" help:"Prompts by the source of their ids, and the reason when there are none."`
	Shared metric.Int64Counter     `metric:"kvpilot.tokenizer.shared" unit:"{prompt}" help:"Prompts that joined a call in progress."`
	Gave   metric.Int64Counter     `metric:"kvpilot.tokenizer.handoffs" unit:"{prompt}" by:"model form reason" help:"Decisions whether to send ids to the engine, by form and reason."`
	Differ metric.Int64Counter     `metric:"kvpilot.tokenizer.parity.mismatches" unit:"{prompt}" by:"model" help:"Prompts whose ids differ from the engine's."`
	// Skipped counts background work left out, Broken the rules about conversations that failed.
	Skipped metric.Int64Counter `metric:"kvpilot.tokenizer.background.skipped" unit:"{prompt}" help:"Encodings not completed in the background because too many were queued."`
	Broken  metric.Int64Counter `metric:"kvpilot.tokenizer.conversation.broken" unit:"{turn}" help:"Turns whose known beginning was not a prefix of the full prompt."`
	// Older counts the prompts that waited because their known beginning was older than the turn before.
	Older   instruments.Keyed[string]     `metric:"kvpilot.tokenizer.conversation.older" unit:"{prompt}" by:"outcome" help:"Prompts that waited for all ids because only an older turn was known, by outcome: whole, late or failed."`
	Bytes   metric.Int64ObservableGauge   `metric:"kvpilot.tokenizer.cache.size" unit:"By" help:"Memory of the cache of encodings."`
	Items   metric.Int64ObservableGauge   `metric:"kvpilot.tokenizer.cache.items" unit:"{encoding}" help:"Encodings in the cache."`
	Evicted metric.Int64ObservableCounter `metric:"kvpilot.tokenizer.cache.evictions" unit:"{encoding}" help:"Encodings evicted."`
	Held    metric.Int64ObservableGauge   `metric:"kvpilot.tokenizer.held" unit:"By" help:"Memory of the encodings that requests in flight hold."`

	models  *labels.Names
	stages  labels.Sets[string]
	results labels.Sets[sourceLabels]
	given   labels.Sets[handoffLabels]
}

// mostModels bounds the models with series of their own, for fleets that load and unload adapters for years.
const mostModels = 200

func newMetrics(provider metric.MeterProvider, stats func() cache.Stats, held func() int64) *metrics {
	m := &metrics{models: labels.NewNames(mostModels)}
	s := instruments.Declare(provider, "server/tokens/tokenizer", m)
	m.Older.Know(olderWhole, olderLate, olderFailed)
	s.Observe(func(o metric.Observer) {
		cached := stats()
		o.ObserveInt64(m.Bytes, cached.Bytes)
		o.ObserveInt64(m.Items, int64(cached.Items))
		o.ObserveInt64(m.Evicted, cached.Evictions)
		o.ObserveInt64(m.Held, held())
	})
	return m
}

// Labels of the measurements that every request makes.
type (
	sourceLabels  struct{ model, source, reason string }
	handoffLabels struct{ model, form, reason string }
)

func (m *metrics) encoded(model, source, reason string, took time.Duration) {
	ctx := context.Background() // makes no exemplar
	m.Stage.Record(ctx, took.Seconds(), m.stages.Of(source, func(source string) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("source", source)}
	}))
	m.Result.Add(ctx, 1, m.results.Of(sourceLabels{m.models.Of(model), source, reason}, func(l sourceLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("model", l.model), attribute.String("source", l.source), attribute.String("reason", l.reason)}
	}))
}

func (m *metrics) handoff(model string, h Handoff) {
	m.Gave.Add(context.Background(), 1, m.given.Of(handoffLabels{m.models.Of(model), string(h.Form), h.Reason}, func(l handoffLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("model", l.model), attribute.String("form", l.form), attribute.String("reason", l.reason)}
	}))
}

// known makes a model's count of mismatches exist before there is one, so that its increase is seen.
func (m *metrics) known(model string) {
	m.Differ.Add(context.Background(), 0, metric.WithAttributes(attribute.String("model", m.models.Of(model))))
}

func (m *metrics) mismatch(model string) {
	m.Differ.Add(context.Background(), 1, metric.WithAttributes(attribute.String("model", m.models.Of(model))))
}
