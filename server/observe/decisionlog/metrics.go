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

// metrics counts decisions by how they fell and ended, and predictions against outcomes.
type metrics struct {
	Decisions metric.Int64Counter       `metric:"kvpilot.decisionlog.decisions" unit:"{decision}" by:"policy reason dry_run" help:"Decisions by policy and reason."`
	Endings   metric.Int64Counter       `metric:"kvpilot.decisionlog.endings" unit:"{decision}" by:"end" help:"Ended decisions by how the request ended."`
	Drops     instruments.Keyed[string] `metric:"kvpilot.decisionlog.dropped" unit:"{entry}" by:"by" values:"file subscriber" help:"Entries dropped because a subscriber or the file was too slow."`
	CacheGap  metric.Float64Histogram   `metric:"kvpilot.decisionlog.cached_tokens.error" unit:"{token}" bounds:"0 16 64 256 1024 4096 16384 65536" help:"Absolute difference between predicted and actual cached tokens."`
	TTFTGap   metric.Float64Histogram   `metric:"kvpilot.decisionlog.ttft.ratio" unit:"1" bounds:"0.1 0.25 0.5 0.75 0.9 1.1 1.5 2 4 10" help:"Actual time to first token divided by the predicted one."`
	Regret    metric.Float64Histogram   `metric:"kvpilot.decisionlog.regret" unit:"s" bounds:"0 0.001 0.01 0.05 0.1 0.5 1 5 30" help:"Predicted time to first token of the served choice minus that of the fastest candidate."`

	reasons labels.Sets[reasonLabels]
	ends    labels.Sets[decision.End]
}

// reasonLabels are the labels of a decision.
type reasonLabels struct {
	policy, reason string
	dryRun         bool
}

func newMetrics(p metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(p, "server/observe/decisionlog", m)
	return m
}

func (m *metrics) decided(d *decision.Decision) {
	m.Decisions.Add(context.Background(), 1, m.reasons.Of(reasonLabels{string(d.Policy), string(d.Reason), d.DryRun}, func(l reasonLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("policy", l.policy), attribute.String("reason", l.reason), attribute.Bool("dry_run", l.dryRun)}
	}))
	if gap, ok := regret(d); ok {
		m.Regret.Record(context.Background(), gap)
	}
}

func (m *metrics) ended(o *decision.Outcome) {
	ctx := context.Background()
	m.Endings.Add(ctx, 1, m.ends.Of(o.End, func(e decision.End) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("end", e.String())}
	}))
	if o.CachedTokens >= 0 && !o.Counted {
		m.CacheGap.Record(ctx, math.Abs(float64(o.CachedTokens-o.PredictedCached)))
	}
	if o.TTFT > 0 && o.Predicted > 0 {
		m.TTFTGap.Record(ctx, float64(o.TTFT)/float64(o.Predicted))
	}
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
