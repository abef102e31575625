package remote

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

type metrics struct {
	Calls     metric.Float64Histogram        `metric:"kvpilot.tokenizer.call.duration" unit:"s" by:"route outcome" bounds:"0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5" help:"Time of one call to a replica's tokenizer routes, by route and outcome. Its replicas: kvpilot_tokenizer_endpoint_calls_total."`
	Faults    instruments.Keyed[retry.Cause] `metric:"kvpilot.tokenizer.faults" unit:"{call}" by:"cause" help:"Failed calls by the party at fault (cause): request, caller, tenant, router, network, replica, rank. Only the last three count against an endpoint."`
	Hedges    metric.Int64Counter            `metric:"kvpilot.tokenizer.hedges" unit:"{call}" help:"Hedged calls, made because the first was slow."`
	HedgesWon metric.Int64Counter            `metric:"kvpilot.tokenizer.hedges.won" unit:"{call}" help:"Hedged calls that were answered first."`
	Retries   metric.Int64Counter            `metric:"kvpilot.tokenizer.retries" unit:"{call}" help:"Calls retried after a failure."`
	Breakers  metric.Int64Counter            `metric:"kvpilot.tokenizer.breaker.opened" unit:"{endpoint}" help:"Times an endpoint was suspended after repeated failures."`
	Expired   metric.Int64Counter            `metric:"kvpilot.tokenizer.endpoint.expired" unit:"{endpoint}" help:"Endpoints removed because they were not used."`
	endpointMetrics

	byCall labels.Sets[callLabels]
}

// endpointMetrics are read of the endpoints at each collection.
type endpointMetrics struct {
	Known    metric.Int64ObservableGauge     `metric:"kvpilot.tokenizer.endpoints" unit:"{endpoint}" help:"Known tokenizer endpoints."`
	Open     metric.Int64ObservableGauge     `metric:"kvpilot.tokenizer.endpoints.open" unit:"{endpoint}" help:"Endpoints whose breaker is open."`
	Asked    metric.Int64ObservableCounter   `metric:"kvpilot.tokenizer.endpoint.calls" unit:"{call}" by:"replica" help:"Calls to a replica's tokenizer routes, by replica."`
	Spent    metric.Float64ObservableCounter `metric:"kvpilot.tokenizer.endpoint.call_time" unit:"s" by:"replica" help:"Time of the calls to a replica's tokenizer routes; divided by kvpilot_tokenizer_endpoint_calls_total, the mean."`
	Failures metric.Int64ObservableCounter   `metric:"kvpilot.tokenizer.endpoint.failures" unit:"{call}" by:"replica kind" help:"Failed calls by replica and kind."`
}

// newMetrics declares the metrics. endpoints lists the endpoints that exist: counts by replica go with their endpoint.
func newMetrics(provider metric.MeterProvider, endpoints func() map[replica.ID]*endpoint) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/tokens/tokenizer/remote", m)
	m.Faults.Know(retry.Causes()...)
	s.Observe(func(o metric.Observer) {
		list, opened := endpoints(), int64(0)
		for id, e := range list {
			if e.isOpen() {
				opened++
			}
			by := attribute.String("replica", string(id))
			n, took, failed := e.tally.read()
			o.ObserveInt64(m.Asked, n, metric.WithAttributes(by))
			o.ObserveFloat64(m.Spent, took.Seconds(), metric.WithAttributes(by))
			for kind, n := range failed {
				o.ObserveInt64(m.Failures, n, metric.WithAttributes(by, attribute.String("kind", string(kind))))
			}
		}
		o.ObserveInt64(m.Known, int64(len(list)))
		o.ObserveInt64(m.Open, opened)
	})
	return m
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
	m.Calls.Record(ctx, took.Seconds(), m.byCall.Of(l, func(l callLabels) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("route", l.route), attribute.String("outcome", l.outcome)}
	}))
}

// fault counts a failure by its cause. A call that ends without a fault has none.
func (m *metrics) fault(f retry.Finding) {
	if f.Verdict != retry.Refused {
		m.Faults.Add(f.Cause)
	}
}
