package chooser

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/watch"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the chooser's own; most are counted with atomics and read at collection.
type metrics struct {
	Unreachable instruments.Total           `metric:"kvpilot.chooser.unreachable" unit:"{request}" help:"Requests rejected because no replica could meet their targets."`
	Sessions    metric.Int64ObservableGauge `metric:"kvpilot.chooser.sessions" unit:"{session}" help:"Sessions whose last rank is remembered, those past chooser.session_ttl included."`

	Bookings    booking.Metrics
	Turns       past.Turns
	Predictions follow.Predictions
	Withdrawn   follow.Withdrawn
	Suspicions  compare.Suspicions
	Stalls      watch.Metrics
	Ranks       rank.Metrics
	Lanes       laneMetrics
	Adapters    adapterMetrics
	Programs    programMetrics
}

func newMetrics(provider metric.MeterProvider) (*metrics, *instruments.Set) {
	m := &metrics{}
	s := instruments.Declare(provider, "server/choose/chooser", m)
	m.Bookings.Know()
	m.Withdrawn.Know()
	m.Suspicions.Know()
	m.Stalls.Know()
	return m, s
}

// observe has the parts read at each collection.
func (c *Chooser) observe(s *instruments.Set) {
	m := c.metrics
	s.Declare(&c.room.Counts, c.memory)
	s.Observe(func(o metric.Observer) {
		o.ObserveInt64(m.Sessions, int64(c.memory.Sessions.Size()))
		c.memory.Affinity.Observe(o)
		m.Bookings.Shadow.Observe(o)
		m.Stalls.Observe(o, c.ranks)
		m.Ranks.Observe(o, c.ranks)
		m.Lanes.observe(o, c.evaluator.Lanes)
		m.Adapters.observe(o, c.ranks, c.adapters)
		m.Programs.observe(o, c.room.Models(), c.clock)
	})
}
