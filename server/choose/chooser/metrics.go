package chooser

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// metrics are the chooser's own; most are counted with atomics and read when collected.
type metrics struct {
	held, left, refused, races, rings, unreachable atomic.Int64
	agreed, differed                               atomic.Int64
	regret                                         number // seconds, summed
	took                                           metric.Float64Histogram
	errors                                         metric.Float64Histogram
	decisions                                      metric.Int64Counter
	attributes                                     map[decision.Policy]metric.MeasurementOption
	affinity                                       *affinity
	stalls, forsaken                               metric.Int64Counter
}

func newMetrics(provider metric.MeterProvider, c *Chooser) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/choose/chooser")
	m := &metrics{attributes: map[decision.Policy]metric.MeasurementOption{}}
	var errs []error
	var err error
	m.took, err = meter.Float64Histogram("kvpilot.chooser.duration",
		metric.WithDescription("Time to decide and book, without waiting in the hold queue."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2))
	errs = append(errs, err)
	m.errors, err = meter.Float64Histogram("kvpilot.chooser.prediction_error",
		metric.WithDescription("Predicted over actual time to the first token of streamed requests, from the choice on, by rank."), metric.WithUnit("1"),
		metric.WithExplicitBucketBoundaries(0.1, 0.33, 0.6, 0.8, 0.9, 1.1, 1.25, 1.6, 3, 10))
	errs = append(errs, err)
	m.decisions, err = meter.Int64Counter("kvpilot.chooser.decisions",
		metric.WithDescription("Requests placed on a rank, by policy."), metric.WithUnit("{decision}"))
	errs = append(errs, err)
	errs = append(errs, m.ofVigil(meter))
	m.affinity, err = newAffinity(meter, c.ring)
	errs = append(errs, err)
	for _, p := range decision.Policies() {
		m.attributes[p] = metric.WithAttributeSet(attribute.NewSet(attribute.String("policy", string(p))))
		m.decisions.Add(context.Background(), 0, m.attributes[p])
	}
	counters := []struct {
		name, about string
		value       *atomic.Int64
	}{
		{"kvpilot.chooser.held", "Requests that had to wait in the hold queue.", &m.held},
		{"kvpilot.chooser.left", "Requests whose caller left while they waited in the hold queue.", &m.left},
		{"kvpilot.chooser.unreachable", "Requests rejected under the objective slo because no replica could meet their targets.", &m.unreachable},
		{"kvpilot.chooser.refused", "Requests that no replica could serve.", &m.refused},
		{"kvpilot.chooser.races", "Choices repeated because another request booked the rank first.", &m.races},
		{"kvpilot.chooser.ring_rebuilds", "Consistent-hash rings built because the pool changed.", &m.rings},
		{"kvpilot.chooser.shadow_agreed", "Decisions with which the shadow policy agreed.", &m.agreed},
		{"kvpilot.chooser.shadow_differed", "Decisions that the shadow policy would have made differently.", &m.differed},
	}
	var observed []metric.Observable
	handles := make([]metric.Int64ObservableCounter, len(counters))
	for i, one := range counters {
		handles[i], err = meter.Int64ObservableCounter(one.name, metric.WithDescription(one.about), metric.WithUnit("{request}"))
		errs = append(errs, err)
		observed = append(observed, handles[i])
	}
	regret, err := meter.Float64ObservableGauge("kvpilot.chooser.shadow_regret",
		metric.WithDescription("Sum of the additional predicted first-token time of the shadow policy's choices."), metric.WithUnit("s"))
	errs = append(errs, err)
	rate, err := meter.Float64ObservableGauge("kvpilot.chooser.prefill_rate",
		metric.WithDescription("Learned prefill rate of a rank at no context."), metric.WithUnit("{token}/s"))
	errs = append(errs, err)
	spread, err := meter.Float64ObservableGauge("kvpilot.chooser.prefill_rate_uncertainty",
		metric.WithDescription("Relative uncertainty of the prefill rate of a rank, by the source of the rate."), metric.WithUnit("1"))
	errs = append(errs, err)
	observed = append(observed, regret, rate, spread)
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for i := range counters {
			o.ObserveInt64(handles[i], counters[i].value.Load())
		}
		o.ObserveFloat64(regret, m.regret.get())
		for _, r := range c.Rates() {
			of := []attribute.KeyValue{attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Rank), attribute.String("source", r.Source.String())}
			o.ObserveFloat64(rate, r.TokensPerSecond, metric.WithAttributes(of[:2]...))
			o.ObserveFloat64(spread, r.Spread, metric.WithAttributes(of...))
		}
		return nil
	}, observed...)
	return m, errors.Join(append(errs, err)...)
}

// ofVigil makes the metrics of ranks that show no sign of life.
func (m *metrics) ofVigil(meter metric.Meter) error {
	var errs [2]error
	m.stalls, errs[0] = meter.Int64Counter("kvpilot.chooser.stalls",
		metric.WithDescription("Times that a rank with requests in flight stalled and was avoided, by evidence."), metric.WithUnit("{stall}"))
	m.forsaken, errs[1] = meter.Int64Counter("kvpilot.chooser.forsaken",
		metric.WithDescription("Requests withdrawn from a stalled rank, by whether their answer had begun."), metric.WithUnit("{request}"))
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	ctx := context.Background()
	for e := EvidenceProbe; e < evidences; e++ {
		m.stalls.Add(ctx, 0, metric.WithAttributes(attribute.String("evidence", e.String())))
	}
	for _, begun := range []bool{false, true} {
		m.forsaken.Add(ctx, 0, metric.WithAttributes(attribute.Bool("begun", begun)))
	}
	return nil
}

func (m *metrics) stalled(e Evidence) {
	m.stalls.Add(context.Background(), 1, metric.WithAttributes(attribute.String("evidence", e.String())))
}

func (m *metrics) forsook(begun bool) {
	m.forsaken.Add(context.Background(), 1, metric.WithAttributes(attribute.Bool("begun", begun)))
}

func (m *metrics) decided(d *decision.Decision) {
	ctx := context.Background()
	m.took.Record(ctx, d.Took.Seconds(), m.attributes[d.Policy])
	m.decisions.Add(ctx, 1, m.attributes[d.Policy])
}

// predicted counts a prediction, in seconds, and what became of it.
func (m *metrics) predicted(r *rank, predicted, actual float64) {
	if actual > 0 {
		m.errors.Record(context.Background(), predicted/actual, r.attributes)
	}
}

func (m *metrics) shadowed(s *decision.Shadow) {
	if s.Agrees {
		m.agreed.Add(1)
		return
	}
	m.differed.Add(1)
	m.regret.add(s.Regret)
}

// add is a counter's addition, safe among others.
func (n *number) add(v float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}
