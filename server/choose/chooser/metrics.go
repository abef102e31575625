package chooser

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the chooser's own; most are counted with atomics and read at collection.
type metrics struct {
	unreachable atomic.Int64 // requests whose targets no rank can keep

	waits                         waitCounts
	bookings                      *bookMetrics
	turns                         turns
	affinity                      *affinity
	predictions                   predictions
	stalls, withdrawn, suspicions metric.Int64Counter
}

func newMetrics(s *instruments.Set, ring selector.RingConfig) *metrics {
	return &metrics{
		bookings: newBookMetrics(s), turns: newTurns(s), affinity: newAffinity(s, ring), predictions: newPredictions(s),
		stalls: newStalls(s), withdrawn: newWithdrawn(s), suspicions: newSuspicions(s),
	}
}

// observe has the parts of c read at each collection.
func (m *metrics) observe(s *instruments.Set, c *Chooser) {
	parts := []func(metric.Observer){
		m.affinity.observe, m.bookings.shadow.metrics(s), newProgramMetrics(s, c.lines, c.clock), newStallMetrics(s, c.rankTable), newAccuracyMetrics(s, c.rankTable), newRateMetrics(s, c), newLaneMetrics(s, c.evaluator.lanes),
	}
	remembered := s.ObservedGauge("kvpilot.chooser.sessions", "{session}", "Sessions whose last rank is remembered, those past chooser.session_ttl included.")
	counters := []struct {
		name, help string
		value      *atomic.Int64
		counter    metric.Int64ObservableCounter
	}{
		{name: "held", help: "Requests that had to wait in the hold queue.", value: &m.waits.held},
		{name: "memory_waits", help: "Requests of programs that had to wait in the router because their context fit in no rank's memory.", value: &m.waits.memory},
		{name: "left", help: "Requests whose caller left while they waited in the hold queue.", value: &m.waits.left},
		{name: "unreachable", help: "Requests rejected because no replica could meet their targets: their own, or under the objective slo the model's.", value: &m.unreachable},
		{name: "refused", help: "Requests that no replica could serve.", value: &m.bookings.rejected},
		{name: "races", help: "Choices repeated because another request booked the rank first.", value: &m.bookings.races},
		{name: "ring_rebuilds", help: "Consistent-hash rings built because the pool changed.", value: &c.memory.rings},
		{name: "shadow_agreed", help: "Decisions with which the shadow policy agreed.", value: &m.bookings.shadow.agreed},
		{name: "shadow_differed", help: "Decisions that the shadow policy would have made differently.", value: &m.bookings.shadow.differed},
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
