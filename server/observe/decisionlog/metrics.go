package decisionlog

import (
	"context"
	"math"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

const ns = "kvpilot.decisionlog."

// metrics counts decisions by how they fell and ended, and predictions against outcomes.
type metrics struct {
	decisions metric.Int64Counter
	endings   metric.Int64Counter
	drops     metric.Int64Counter
	cacheGap  metric.Float64Histogram
	ttftGap   metric.Float64Histogram
	regret    metric.Float64Histogram

	reasons labels.Sets[reasonLabels]
	ends    labels.Sets[decision.End]
}

// reasonLabels are the labels of a decision.
type reasonLabels struct {
	policy, reason string
	dryRun         bool
}

func newMetrics(p metric.MeterProvider) *metrics {
	s := instruments.New(p, "server/observe/decisionlog")
	return &metrics{
		decisions: s.CounterBy(ns+"decisions", "{decision}", "Decisions by policy and reason."),
		endings:   s.CounterBy(ns+"endings", "{decision}", "Ended decisions by how the request ended."),
		drops:     s.CounterBy(ns+"dropped", "{entry}", "Entries dropped because a subscriber or the file was too slow.", instruments.Values("by", "file", "subscriber")...),
		cacheGap:  s.Histogram(ns+"cached_tokens.error", "{token}", "Absolute difference between predicted and actual cached tokens.", 0, 16, 64, 256, 1024, 4096, 16384, 65536),
		ttftGap:   s.Histogram(ns+"ttft.ratio", "1", "Actual time to first token divided by the predicted one.", .1, .25, .5, .75, .9, 1.1, 1.5, 2, 4, 10),
		regret:    s.Histogram(ns+"regret", "s", "Predicted time to first token of the served choice minus that of the fastest candidate.", 0, .001, .01, .05, .1, .5, 1, 5, 30),
	}
}

func (m *metrics) decided(d *decision.Decision) {
	m.decisions.Add(context.Background(), 1, m.reasons.Of(reasonLabels{string(d.Policy), string(d.Reason), d.DryRun}, func(l reasonLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("policy", l.policy), attribute.String("reason", l.reason), attribute.Bool("dry_run", l.dryRun)}
	}))
	if gap, ok := regret(d); ok {
		m.regret.Record(context.Background(), gap)
	}
}

func (m *metrics) ended(o *decision.Outcome) {
	ctx := context.Background()
	m.endings.Add(ctx, 1, m.ends.Of(o.End, func(e decision.End) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("end", e.String())}
	}))
	if o.CachedTokens >= 0 && !o.Counted {
		m.cacheGap.Record(ctx, math.Abs(float64(o.CachedTokens-o.PredictedCached)))
	}
	if o.TTFT > 0 && o.Predicted > 0 {
		m.ttftGap.Record(ctx, float64(o.TTFT)/float64(o.Predicted))
	}
}

func (m *metrics) dropped(by string, n int64) {
	m.drops.Add(context.Background(), n, instruments.Label("by", by))
}

// regret is how much later, in seconds, the served choice was predicted to give its first token
// than the fastest candidate that could have served; ok is false when nothing was predicted.
func regret(d *decision.Decision) (seconds float64, ok bool) {
	pick := d.Pick()
	if pick == nil || pick.TTFT <= 0 {
		return 0, false
	}
	return pick.TTFT - min(d.Fastest(), pick.TTFT), true
}
