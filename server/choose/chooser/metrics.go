package chooser

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
	"github.com/kvpilot/kvpilot/server/choose/chooser/watch"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the chooser's own; most are counted with atomics and read at collection.
type metrics struct {
	unreachable atomic.Int64 // requests whose targets no rank can keep

	bookings                      *booking.Metrics
	turns                         past.Turns
	affinity                      *past.Affinity
	predictions                   follow.Predictions
	stalls, withdrawn, suspicions metric.Int64Counter
}

func newMetrics(s *instruments.Set, ring selector.RingConfig) *metrics {
	return &metrics{
		bookings: booking.NewMetrics(s), turns: past.NewTurns(s), affinity: past.NewAffinity(s, ring), predictions: follow.NewPredictions(s),
		stalls: watch.NewCounter(s), withdrawn: follow.NewWithdrawn(s), suspicions: compare.NewCounter(s),
	}
}

// observe has the parts read at each collection.
func (m *metrics) observe(s *instruments.Set, ranks *rank.Table, room *waiting.Room, memory *past.Memory, lanes *transfer.Lanes, record *adapters.Fleet, clock *clock.Clock) {
	parts := []func(metric.Observer){
		m.affinity.Observe, m.bookings.Shadow.Metrics(s), newProgramMetrics(s, room.Models(), clock), watch.NewMetrics(s, ranks), rank.NewAccuracyMetrics(s, ranks), rank.NewRateMetrics(s, ranks), rank.NewTierMetrics(s, ranks), newLaneMetrics(s, lanes), newAdapterMetrics(s, ranks, record),
	}
	remembered := s.ObservedGauge("kvpilot.chooser.sessions", "{session}", "Sessions whose last rank is remembered, those past chooser.session_ttl included.")
	counters := []struct {
		name, help string
		value      *atomic.Int64
		counter    metric.Int64ObservableCounter
	}{
		{name: "held", help: "Requests that had to wait in the hold queue.", value: &room.Counts.Held},
		{name: "memory_waits", help: "Requests of programs that waited in the router because their context fit in no rank's memory.", value: &room.Counts.Memory},
		{name: "left", help: "Requests whose caller left while they waited in the hold queue.", value: &room.Counts.Left},
		{name: "unreachable", help: "Requests rejected because no replica could meet their targets.", value: &m.unreachable},
		{name: "refused", help: "Requests that no replica could serve.", value: &m.bookings.Rejected},
		{name: "races", help: "Choices repeated because another request booked the rank first.", value: &m.bookings.Races},
		{name: "ring_rebuilds", help: "Consistent-hash rings built because the pool changed.", value: &memory.Rings},
		{name: "shadow_agreed", help: "Decisions with which the shadow policy agreed.", value: &m.bookings.Shadow.Agreed},
		{name: "shadow_differed", help: "Decisions that the shadow policy would have made differently.", value: &m.bookings.Shadow.Differed},
	}
	for i := range counters {
		counters[i].counter = s.ObservedCounter("kvpilot.chooser."+counters[i].name, "{request}", counters[i].help)
	}
	s.Observe(func(o metric.Observer) {
		for _, part := range parts {
			part(o)
		}
		o.ObserveInt64(remembered, int64(memory.Sessions.Size()))
		for _, one := range counters {
			o.ObserveInt64(one.counter, one.value.Load())
		}
	})
}
