package chooser

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the chooser's own; most are counted with atomics and read at collection.
type metrics struct {
	held, memoryWaits, left, rejected, races, unreachable atomic.Int64

	decisions                     decisions
	shadow                        shadows
	turns                         turns
	affinity                      *affinity
	stalls, withdrawn, suspicions metric.Int64Counter
}

func newMetrics(s *instruments.Set, ring selector.RingConfig) *metrics {
	var evidence, all []metric.MeasurementOption
	for e := liveness.Probe; e <= liveness.Halted; e++ {
		evidence = append(evidence, instruments.Label("evidence", e.String()))
	}
	for _, one := range conduct.Suspicions() {
		all = append(all, suspicion(one))
	}
	m := &metrics{decisions: newDecisions(s), turns: newTurns(s), affinity: newAffinity(s, ring)}
	m.stalls = s.CounterBy("kvpilot.chooser.stalls", "{stall}", "Times that a rank with requests in flight stalled and was avoided, by evidence.", evidence...)
	m.withdrawn = s.CounterBy("kvpilot.chooser.forsaken", "{request}", "Requests withdrawn from a stalled rank, by whether their answer had begun.", begun(false), begun(true))
	m.suspicions = s.CounterBy("kvpilot.chooser.suspicions", "{suspicion}", "Times that a rank was found to behave unlike its equals and was avoided: slow (its output tokens take much longer), empty (it gives empty answers) or unproven (its answers do not show as cached what it claims to hold).", all...)
	return m
}

// observe has the parts of c read at each collection.
func (m *metrics) observe(s *instruments.Set, c *Chooser) {
	parts := []func(metric.Observer){
		m.affinity.observe, m.shadow.metrics(s), newProgramMetrics(s, c.lines, c.clock), newStallMetrics(s, c.rankTable), newAccuracyMetrics(s, c.rankTable), newRateMetrics(s, c), newLaneMetrics(s, c.evaluator.lanes),
	}
	remembered := s.ObservedGauge("kvpilot.chooser.sessions", "{session}", "Sessions whose last rank is remembered, those past chooser.session_ttl included.")
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
		{name: "ring_rebuilds", help: "Consistent-hash rings built because the pool changed.", value: &c.memory.rings},
		{name: "shadow_agreed", help: "Decisions with which the shadow policy agreed.", value: &m.shadow.agreed},
		{name: "shadow_differed", help: "Decisions that the shadow policy would have made differently.", value: &m.shadow.differed},
	}
	for i := range counters {
		counters[i].counter = s.ObservedCounter("kvpilot.chooser."+counters[i].name, "{request}", counters[i].help)
	}
	s.Observe(func(o metric.Observer) {
		for _, part := range parts {
			part(o)
		}
		o.ObserveInt64(remembered, int64(c.memory.sessions.size()))
		for _, one := range counters {
			o.ObserveInt64(one.counter, one.value.Load())
		}
	})
}

// newRateMetrics declares each rank's learned rates, and returns the function that reads it.
func newRateMetrics(s *instruments.Set, c *Chooser) (observe func(metric.Observer)) {
	suspect := s.ObservedGauge("kvpilot.chooser.suspect", "1", "1 while a rank is avoided because it behaves unlike its equals, by suspicion.")
	slowness := s.ObservedFloat("kvpilot.chooser.slowness", "1", "Time of a rank's output tokens divided by that of its equals under the same load; 0 while it is not known.")
	trust := s.ObservedFloat("kvpilot.chooser.overlap_trust", "1", "Share of what a rank claims to hold of prompts that counts.")
	rate := s.ObservedFloat("kvpilot.chooser.prefill_rate", "{token}/s", "Learned prefill rate of a rank at no context.")
	spread := s.ObservedFloat("kvpilot.chooser.prefill_rate_uncertainty", "1", "Relative uncertainty of the prefill rate of a rank, by the source of the rate.")
	return func(o metric.Observer) {
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
	}
}

// decisions measures the decisions that are booked.
type decisions struct {
	predictions
	took     metric.Float64Histogram
	made     metric.Int64Counter
	policies map[decision.Policy]metric.MeasurementOption
	ways     ways
}

// ways counts the requests by the way in which they are served.
type ways struct {
	count        metric.Int64Counter
	whole, split metric.MeasurementOption
}

func newWays(s *instruments.Set) ways {
	m := ways{whole: instruments.Label("way", "whole"), split: instruments.Label("way", "split")}
	m.count = s.CounterBy("kvpilot.chooser.ways", "{request}", "Requests that could be split, by the way that cost least: whole (one rank serves them) or split (one rank computes the prompt, another one writes the answer).", m.whole, m.split)
	return m
}

func (m *ways) add(d *decision.Decision) {
	switch {
	case len(d.Ways) == 0:
	case d.Split() != nil:
		m.count.Add(context.Background(), 1, m.split)
	default:
		m.count.Add(context.Background(), 1, m.whole)
	}
}

// newLaneMetrics declares the learned times of transfers, and returns the function that reads it.
func newLaneMetrics(s *instruments.Set, lanes *transfer.Lanes) (observe func(metric.Observer)) {
	start := s.ObservedFloat("kvpilot.chooser.transfer_start", "s", "Predicted time of a transfer of KV cache of no tokens, by the network domains that it comes from and goes to.")
	each := s.ObservedFloat("kvpilot.chooser.transfer_token_time", "s", "Predicted time of each token of a transfer of KV cache, by the network domains that it comes from and goes to.")
	return func(o metric.Observer) {
		for _, lane := range lanes.List() {
			m := lane.Model()
			of := instruments.Labels(attribute.String("from", lane.From), attribute.String("to", lane.To))
			o.ObserveFloat64(start, m.Start, of)
			o.ObserveFloat64(each, m.PerToken, of)
		}
	}
}

func newDecisions(s *instruments.Set) decisions {
	m := decisions{policies: map[decision.Policy]metric.MeasurementOption{}, ways: newWays(s)}
	var policies []metric.MeasurementOption
	for _, p := range decision.Policies() {
		m.policies[p] = instruments.Label("policy", string(p))
		policies = append(policies, m.policies[p])
	}
	m.policies[decision.PolicyOther] = instruments.Label("policy", string(decision.PolicyOther))
	m.took = s.Histogram("kvpilot.chooser.duration", "s", "Time to decide and book, without waiting in the hold queue.",
		5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2)
	m.errors = s.Histogram("kvpilot.chooser.prediction_error", "1", "Predicted over actual time to the first token of streamed requests, from the choice on. Its ranks: kvpilot_chooser_predictions_total.",
		0.1, 0.33, 0.6, 0.8, 0.9, 1.1, 1.25, 1.6, 3, 10)
	m.made = s.CounterBy("kvpilot.chooser.decisions", "{decision}", "Requests placed on a rank, by policy.", policies...)
	return m
}

func (m *decisions) decided(d *decision.Decision) {
	ctx := context.Background()
	m.took.Record(ctx, d.Took.Seconds(), m.policies[d.Policy])
	m.made.Add(ctx, 1, m.policies[d.Policy])
	m.ways.add(d)
}

// predictions measures how right the predicted first tokens were.
type predictions struct{ errors metric.Float64Histogram }

// add counts a prediction, in seconds, and the actual time.
func (m *predictions) add(r *rank, predicted, actual float64) {
	if actual > 0 {
		m.errors.Record(context.Background(), predicted/actual)
		r.accuracy.add(predicted / actual)
	}
}

// shadows counts the decisions by whether the shadow policy agreed.
type shadows struct {
	agreed, differed atomic.Int64
	regret           number // seconds, summed
}

func (m *shadows) add(s *decision.Shadow) {
	if s.Agrees {
		m.agreed.Add(1)
		return
	}
	m.differed.Add(1)
	m.regret.add(s.Regret)
}

func (m *shadows) metrics(s *instruments.Set) (observe func(metric.Observer)) {
	regret := s.ObservedFloat("kvpilot.chooser.shadow_regret", "s", "Sum of the additional predicted first-token time of the shadow policy's choices.")
	return func(o metric.Observer) { o.ObserveFloat64(regret, m.regret.get()) }
}

// turns counts the requests with a session.
type turns struct {
	count              metric.Int64Counter
	first, same, other metric.MeasurementOption
}

func newTurns(s *instruments.Set) turns {
	m := turns{first: instruments.Label("rank", "first"), same: instruments.Label("rank", "same"), other: instruments.Label("rank", "other")}
	m.count = s.CounterBy("kvpilot.chooser.session_turns", "{request}", "Requests with a session, by the rank that they went to: first (the session is new or was forgotten), same or other than its last one.",
		m.first, m.same, m.other)
	return m
}

// add counts a request. known says that the session was remembered, same that it went to its last rank.
func (m *turns) add(known, same bool) {
	turn := m.other
	switch {
	case !known:
		turn = m.first
	case same:
		turn = m.same
	}
	m.count.Add(context.Background(), 1, turn)
}

func suspicion(s conduct.Suspicion) metric.MeasurementOption {
	return instruments.Label("suspicion", s.String())
}

func begun(yes bool) metric.MeasurementOption {
	return instruments.Labels(attribute.Bool("begun", yes))
}
