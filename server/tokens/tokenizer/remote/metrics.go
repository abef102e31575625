package remote

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/replica"
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
	faults    metric.Int64Counter
	causes    map[retry.Cause]metric.MeasurementOption
	hedges    counter
	hedgesWon counter
	retries   counter
	breakers  counter
	expired   counter

	byCall labels.Sets[callLabels]
}

// newMetrics declares the metrics. endpoints lists the endpoints that exist: counts by replica go with their endpoint.
func newMetrics(provider metric.MeterProvider, endpoints func() map[replica.ID]*endpoint) *metrics {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote")
	m := &metrics{}
	// An instrument with a constant, valid name cannot fail to be made.
	m.calls, _ = meter.Float64Histogram("kvpilot.tokenizer.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one call to a replica's tokenizer routes, by route and outcome. Its replicas: kvpilot_tokenizer_endpoint_calls_total."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5))
	m.faults, _ = meter.Int64Counter("kvpilot.tokenizer.faults", metric.WithUnit("{call}"),
		metric.WithDescription("Failed calls by the party at fault (cause): request, caller, tenant, router, network, replica, rank. Only the last three count against an endpoint."))
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
	observeEndpoints(meter, endpoints)
	return m
}

// observeEndpoints declares the figures read of the endpoints at each collection.
func observeEndpoints(meter metric.Meter, endpoints func() map[replica.ID]*endpoint) {
	known, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.endpoints", metric.WithUnit("{endpoint}"), metric.WithDescription("Known tokenizer endpoints."))
	open, _ := meter.Int64ObservableGauge("kvpilot.tokenizer.endpoints.open", metric.WithUnit("{endpoint}"), metric.WithDescription("Endpoints whose breaker is open."))
	calls, _ := meter.Int64ObservableCounter("kvpilot.tokenizer.endpoint.calls", metric.WithUnit("{call}"), metric.WithDescription("Calls to a replica's tokenizer routes, by replica."))
	spent, _ := meter.Float64ObservableCounter("kvpilot.tokenizer.endpoint.call_time", metric.WithUnit("s"), metric.WithDescription("Time of the calls to a replica's tokenizer routes; divided by kvpilot_tokenizer_endpoint_calls_total, the mean."))
	failures, _ := meter.Int64ObservableCounter("kvpilot.tokenizer.endpoint.failures", metric.WithUnit("{call}"), metric.WithDescription("Failed calls by replica and kind."))
	_, _ = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		list, opened := endpoints(), int64(0)
		for id, e := range list {
			if e.isOpen() {
				opened++
			}
			by := attribute.String("replica", string(id))
			n, took, failed := e.tally.read()
			o.ObserveInt64(calls, n, metric.WithAttributes(by))
			o.ObserveFloat64(spent, took.Seconds(), metric.WithAttributes(by))
			for kind, n := range failed {
				o.ObserveInt64(failures, n, metric.WithAttributes(by, attribute.String("kind", string(kind))))
			}
		}
		o.ObserveInt64(known, int64(len(list)))
		o.ObserveInt64(open, opened)
		return nil
	}, known, open, calls, spent, failures)
}

// tally counts the calls to one endpoint. Its zero value is ready; it is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	calls  int64          // guarded by mu
	took   time.Duration  // guarded by mu
	failed map[Kind]int64 // guarded by mu
}

func (t *tally) called(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	t.took += took
}

func (t *tally) failure(kind Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = map[Kind]int64{}
	}
	t.failed[kind]++
}

func (t *tally) read() (calls int64, took time.Duration, failed map[Kind]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls, t.took, maps.Clone(t.failed)
}

// callLabels are the labels of a call.
type callLabels struct{ route, outcome string }

func (m *metrics) observeCall(ctx context.Context, e *endpoint, l callLabels, took time.Duration) {
	e.tally.called(took)
	m.calls.Record(ctx, took.Seconds(), m.byCall.Of(l, func(l callLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("route", l.route), attribute.String("outcome", l.outcome)}
	}))
}

// fault counts a failure by its cause. A call that ends without a fault has none.
func (m *metrics) fault(f retry.Finding) {
	if label, ok := m.causes[f.Cause]; ok && f.Verdict != retry.Refused {
		m.faults.Add(context.Background(), 1, label)
	}
}
