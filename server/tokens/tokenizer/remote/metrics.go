package remote

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/kit/labels"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// counter adds to a series that exists at zero from the start.
type counter struct{ c metric.Int64Counter }

func (c counter) add(ctx context.Context, n int64) {
	if n != 0 {
		c.c.Add(ctx, n)
	}
}

type metrics struct {
	calls     metric.Float64Histogram
	failures  metric.Int64Counter
	faults    metric.Int64Counter
	causes    map[retry.Cause]metric.MeasurementOption
	hedges    counter
	hedgesWon counter
	retries   counter
	breakers  counter
	expired   counter

	byCall labels.Sets[callLabels]
}

func newMetrics(provider metric.MeterProvider, endpoints func() (known, open int64)) *metrics {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote")
	m := &metrics{}
	// An instrument with a constant, valid name cannot fail to be made.
	m.calls, _ = meter.Float64Histogram("kvpilot.tokenizer.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one call to a replica's tokenizer routes, by replica, model, route and outcome."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5))
	m.failures, _ = meter.Int64Counter("kvpilot.tokenizer.endpoint.failures", metric.WithUnit("{call}"),
		metric.WithDescription("Failed calls by replica and kind."))
	m.faults, _ = meter.Int64Counter("kvpilot.tokenizer.faults", metric.WithUnit("{call}"),
		metric.WithDescription("Failed calls by the party at fault (cause): request (the question fails on several replicas), caller, tenant (its questions do), router (no file descriptor, port or memory left), network, replica, rank. Only the last three count against an endpoint."))
	m.causes = map[retry.Cause]metric.MeasurementOption{}
	for _, c := range retry.Causes() {
		m.causes[c] = metric.WithAttributeSet(attribute.NewSet(attribute.String("cause", c.String())))
		m.faults.Add(context.Background(), 0, m.causes[c])
	}
	zero := func(name, unit, text string) counter {
		c, _ := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		c.Add(context.Background(), 0)
		return counter{c}
	}
	m.hedges = zero("kvpilot.tokenizer.hedges", "{call}", "Hedged calls, made because the first was slow.")
	m.hedgesWon = zero("kvpilot.tokenizer.hedges.won", "{call}", "Hedged calls that were answered first.")
	m.retries = zero("kvpilot.tokenizer.retries", "{call}", "Calls retried after a failure.")
	m.breakers = zero("kvpilot.tokenizer.breaker.opened", "{endpoint}", "Times an endpoint was suspended after repeated failures.")
	m.expired = zero("kvpilot.tokenizer.endpoint.expired", "{endpoint}", "Endpoints removed because they were not used.")
	known, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.endpoints", metric.WithUnit("{endpoint}"), metric.WithDescription("Known tokenizer endpoints."))
	open, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.endpoints.open", metric.WithUnit("{endpoint}"), metric.WithDescription("Endpoints whose breaker is open."))
	_, _ = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		k, n := endpoints()
		o.ObserveInt64(known, k)
		o.ObserveInt64(open, n)
		return nil
	}, known, open)
	return m
}

// callLabels are those of a call.
type callLabels struct{ replica, model, route, outcome string }

func (m *metrics) observeCall(ctx context.Context, l callLabels, took time.Duration) {
	m.calls.Record(ctx, took.Seconds(), m.byCall.Of(l, func(l callLabels) []attribute.KeyValue {
		return []attribute.KeyValue{
			attribute.String("replica", l.replica), attribute.String("model", l.model), attribute.String("route", l.route), attribute.String("outcome", l.outcome),
		}
	}))
}

func (m *metrics) failure(ctx context.Context, id string, kind Kind) {
	m.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("replica", id), attribute.String("kind", string(kind))))
}

// fault counts a failure by its cause. What ends without a fault has none.
func (m *metrics) fault(f retry.Finding) {
	if label, ok := m.causes[f.Cause]; ok && f.Verdict != retry.Refused {
		m.faults.Add(context.Background(), 1, label)
	}
}
