package chooser

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the chooser's own; most are counted with atomics and read at collection.
type metrics struct {
	held, memoryWaits, left, rejected, races, rings, unreachable atomic.Int64
	agreed, differed                                             atomic.Int64
	regret                                                       number // seconds, summed
	took                                                         metric.Float64Histogram
	errors                                                       metric.Float64Histogram
	decisions                                                    metric.Int64Counter
	stalls, withdrawn, turns, suspicions                         metric.Int64Counter
	turnFirst, turnSame, turnOther                               metric.MeasurementOption
	policies                                                     map[decision.Policy]metric.MeasurementOption
	affinity                                                     *affinity
}

func newMetrics(provider metric.MeterProvider, c *Chooser) *metrics {
	s := instruments.New(provider, "server/choose/chooser")
	m := &metrics{
		policies:  map[decision.Policy]metric.MeasurementOption{},
		turnFirst: instruments.Label("rank", "first"), turnSame: instruments.Label("rank", "same"), turnOther: instruments.Label("rank", "other"),
	}
	var policies, evidence []metric.MeasurementOption
	for _, p := range decision.Policies() {
		m.policies[p] = instruments.Label("policy", string(p))
		policies = append(policies, m.policies[p])
	}
	m.policies[decision.PolicyOther] = instruments.Label("policy", string(decision.PolicyOther))
	for e := liveness.Probe; e <= liveness.Silence; e++ {
		evidence = append(evidence, instruments.Label("evidence", e.String()))
	}
	m.took = s.Histogram("kvpilot.chooser.duration", "s", "Time to decide and book, without waiting in the hold queue.",
		5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2)
	m.errors = s.Histogram("kvpilot.chooser.prediction_error", "1", "Predicted over actual time to the first token of streamed requests, from the choice on. Its ranks: kvpilot_chooser_predictions_total.",
		0.1, 0.33, 0.6, 0.8, 0.9, 1.1, 1.25, 1.6, 3, 10)
	m.decisions = s.CounterBy("kvpilot.chooser.decisions", "{decision}", "Requests placed on a rank, by policy.", policies...)
	m.stalls = s.CounterBy("kvpilot.chooser.stalls", "{stall}", "Times that a rank with requests in flight stalled and was avoided, by evidence.", evidence...)
	m.withdrawn = s.CounterBy("kvpilot.chooser.forsaken", "{request}", "Requests withdrawn from a stalled rank, by whether their answer had begun.", begun(false), begun(true))
	m.turns = s.CounterBy("kvpilot.chooser.session_turns", "{request}", "Requests with a session, by the rank that they went to: first (the session is new or was forgotten), same or other than its last one.",
		m.turnFirst, m.turnSame, m.turnOther)
	remembered := s.ObservedGauge("kvpilot.chooser.sessions", "{session}", "Sessions whose last rank is remembered, those past chooser.session_ttl included.")
	observeOthers := newOtherMetrics(s, c)
	m.affinity = newAffinity(s, c.ring)
	counters := []struct {
		name, help string
		value      *atomic.Int64
		counter    metric.Int64ObservableCounter
	}{
		{name: "held", help: "Requests that had to wait in the hold queue.", value: &m.held},
		{name: "memory_waits", help: "Requests of programs that had to wait in the router because their context fit in no rank's memory.", value: &m.memoryWaits},
		{name: "left", help: "Requests whose caller left while they waited in the hold queue.", value: &m.left},
		{name: "unreachable", help: "Requests rejected because no replica could meet their targets: their own, or under the objective slo the model's.", value: &m.unreachable},
		{name: "refused", help: "Requests that no replica could serve.", value: &m.rejected},
		{name: "races", help: "Choices repeated because another request booked the rank first.", value: &m.races},
		{name: "ring_rebuilds", help: "Consistent-hash rings built because the pool changed.", value: &m.rings},
		{name: "shadow_agreed", help: "Decisions with which the shadow policy agreed.", value: &m.agreed},
		{name: "shadow_differed", help: "Decisions that the shadow policy would have made differently.", value: &m.differed},
	}
	for i := range counters {
		counters[i].counter = s.ObservedCounter("kvpilot.chooser."+counters[i].name, "{request}", counters[i].help)
	}
	var all []metric.MeasurementOption
	for _, one := range conduct.Suspicions() {
		all = append(all, suspicion(one))
	}
	m.suspicions = s.CounterBy("kvpilot.chooser.suspicions", "{suspicion}", "Times that a rank was found to behave unlike its equals and was avoided: slow (its output tokens take much longer), empty (it gives empty answers) or unproven (its answers do not show as cached what it claims to hold).", all...)
	suspect := s.ObservedGauge("kvpilot.chooser.suspect", "1", "1 while a rank is avoided because it behaves unlike its equals, by suspicion.")
	slowness := s.ObservedFloat("kvpilot.chooser.slowness", "1", "Time of a rank's output tokens divided by that of its equals under the same load; 0 while it is not known.")
	trust := s.ObservedFloat("kvpilot.chooser.overlap_trust", "1", "Share of what a rank claims to hold of prompts that counts.")
	regret := s.ObservedFloat("kvpilot.chooser.shadow_regret", "s", "Sum of the additional predicted first-token time of the shadow policy's choices.")
	rate := s.ObservedFloat("kvpilot.chooser.prefill_rate", "{token}/s", "Learned prefill rate of a rank at no context.")
	spread := s.ObservedFloat("kvpilot.chooser.prefill_rate_uncertainty", "1", "Relative uncertainty of the prefill rate of a rank, by the source of the rate.")
	s.Observe(func(o metric.Observer) {
		m.affinity.observe(o)
		observeOthers(o)
		o.ObserveInt64(remembered, int64(c.sessions.size()))
		for _, one := range counters {
			o.ObserveInt64(one.counter, one.value.Load())
		}
		o.ObserveFloat64(regret, m.regret.get())
		for _, r := range c.Rates() {
			of := []attribute.KeyValue{attribute.String("replica", string(r.Replica)), attribute.Int("rank", r.Rank), attribute.String("source", r.Source.String())}
			o.ObserveFloat64(rate, r.TokensPerSecond, metric.WithAttributes(of[:2]...))
			o.ObserveFloat64(spread, r.Spread, metric.WithAttributes(of...))
			o.ObserveFloat64(slowness, r.Conduct.Slowness, metric.WithAttributes(of[:2]...))
			o.ObserveFloat64(trust, r.Conduct.Trust, metric.WithAttributes(of[:2]...))
			for _, one := range conduct.Suspicions() {
				held := int64(0)
				if r.Conduct.Suspicions&one != 0 {
					held = 1
				}
				o.ObserveInt64(suspect, held, metric.WithAttributes(append(of[:2:2], attribute.String("suspicion", one.String()))...))
			}
		}
	})
	return m
}

// newOtherMetrics declares the metrics of other files, and returns what reads them.
func newOtherMetrics(s *instruments.Set, c *Chooser) (observe func(metric.Observer)) {
	programs, stalls, accuracy := newProgramMetrics(s, c), newStallMetrics(s, c), newAccuracyMetrics(s, c)
	return func(o metric.Observer) {
		programs(o)
		stalls(o)
		accuracy(o)
	}
}

func suspicion(s conduct.Suspicion) metric.MeasurementOption {
	return instruments.Label("suspicion", s.String())
}

// turned counts a request with a session. known says that the session was remembered, same that it went to its last rank.
func (m *metrics) turned(known, same bool) {
	turn := m.turnOther
	switch {
	case !known:
		turn = m.turnFirst
	case same:
		turn = m.turnSame
	}
	m.turns.Add(context.Background(), 1, turn)
}

func begun(yes bool) metric.MeasurementOption {
	return instruments.Labels(attribute.Bool("begun", yes))
}

func (m *metrics) stalled(e liveness.Evidence) {
	m.stalls.Add(context.Background(), 1, instruments.Label("evidence", e.String()))
}

func (m *metrics) decided(d *decision.Decision) {
	ctx := context.Background()
	m.took.Record(ctx, d.Took.Seconds(), m.policies[d.Policy])
	m.decisions.Add(ctx, 1, m.policies[d.Policy])
}

// predicted counts a prediction, in seconds, and the actual time.
func (m *metrics) predicted(r *rank, predicted, actual float64) {
	if actual > 0 {
		m.errors.Record(context.Background(), predicted/actual)
		r.accuracy.add(predicted / actual)
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
